"""What a run needs from the hub: the repositories, revisions and patterns that its script requests."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Asset, RunPlan
from madlite_plugins.tokenizers import GATED


def is_of_hub(name: object) -> bool:
    """Return whether a setting names a repository of the hub: neither nothing nor a path.

    The run's script has the same rule in templates/hf/_values.j2, which a test holds to this one.
    """
    return bool(name) and not str(name).startswith(("/", ".", "~"))


def hub_assets(plan: RunPlan) -> Iterator[Asset]:
    """Yield weights, a tokenizer of its own and a data set; nothing of random weights and made-up tokens."""
    settings = plan.settings
    model, tokenizer, dataset = (str(settings[key]) for key in ("model_id", "tokenizer_id", "dataset"))
    of_tokenizer = tuple(str(settings["tokenizer_files"]).split())
    if is_of_hub(model):
        yield Asset(
            kind="model",
            ref=model,
            gated=model.startswith(GATED),
            revision=str(settings["revision"]),
            files=(*str(settings["weight_files"]).split(), *of_tokenizer),
            hint="--set model_id= --set dataset= trains random weights on made-up tokens",
        )
    if dataset and is_of_hub(tokenizer):
        yield Asset(
            kind="tokenizer",
            ref=tokenizer,
            gated=tokenizer.startswith(GATED),
            files=of_tokenizer,
            hint="--set dataset= needs none",
        )
    if is_of_hub(dataset):
        yield Asset(
            kind="dataset",
            ref=dataset,
            revision=str(settings["dataset_revision"]),
            files=tuple(str(settings["dataset_files"]).split()),
            hint="--set dataset= trains on made-up tokens",
        )
