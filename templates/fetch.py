"""Find a Hugging Face repository, or some files of it: in the cache, else on the hub; print the folder it lies in.

    python3 fetch.py [--dataset] [--revision COMMIT] REPOSITORY [PATTERN …]

Where HF_HUB_OFFLINE is set nothing is fetched.  A token is read from HF_TOKEN.
"""

from __future__ import annotations

import argparse


def main() -> None:
    """Print the folder of what the arguments name."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dataset", action="store_true", help="it is a data set, not a model")
    options.add_argument("--revision", help="commit, branch or tag")
    options.add_argument("repository")
    options.add_argument("patterns", nargs="*", help="globs of the files that are needed; all where none is given")
    asked = options.parse_args()
    from huggingface_hub import snapshot_download

    print(  # noqa: T201 - what the caller reads
        snapshot_download(
            asked.repository,
            repo_type="dataset" if asked.dataset else "model",
            revision=asked.revision or None,
            allow_patterns=asked.patterns or None,
        )
    )


if __name__ == "__main__":
    main()
