"""Lines by which Primus says why it failed, as v25.9 to v26.6 print them, and those of the run's own script."""

from __future__ import annotations

from madlite import FailureRule

RULES = (
    FailureRule(
        pattern=r"^madlite: there is no Primus here",
        cause="missing_package",
        hint="take an image of rocm/primus, or name Primus's folder with --set primus_root=",
    ),
    FailureRule(
        pattern=r"^madlite: \S+ has no config file",
        cause="missing_file",
        hint="the image is of another release: --image-release, or --set config= with a file that it has",
    ),
    FailureRule(
        pattern=r"(?i)can't find key\b|\bCannot override non-existing key",
        cause="bad_option",
        hint="this release of Primus does not know the option: see --image-release and the card's args",
    ),
    FailureRule(
        pattern=r"prepare_experiment\.py failed, aborting",
        cause="prepare",
        hint="the tokenizer was not fetched: export MAD_SECRETS_HFTOKEN=…, or HF_HUB_OFFLINE=1 with a full cache",
    ),
)
