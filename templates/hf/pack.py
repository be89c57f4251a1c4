"""Make full sequences of a data set: its texts as tokens, one after another.

    python3 pack.py train.json TOKENIZER DATA

TOKENIZER is a folder; DATA a file or a folder with files of .parquet, .jsonl, .json or .txt, those of the split where
their names tell.  As many tokens as the training reads are written, each text ended by the tokenizer's end mark.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

PACKED = "tokens.bin"  # 32-bit numbers, one after another
KINDS = (".parquet", ".jsonl", ".json", ".txt")
FIELDS = ("messages", "conversations", "text", "content")
AT_ONCE = 256


def files(source: Path, split: str) -> list[Path]:
    """Return the files to read, in the order of their names."""
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix in KINDS and path.is_file())
    inside = re.compile(rf"(?:^|[/_.-]){re.escape(split)}(?:$|[/.-])")
    of_split = [path for path in found if inside.search(str(path.relative_to(source)))]
    return of_split or found


def rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a file: tables as dictionaries, a plain text as its paragraphs."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(AT_ONCE):
            yield from batch.to_pylist()
    elif path.suffix == ".txt":
        yield from (part for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip())
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
    else:
        whole = json.loads(path.read_text(encoding="utf-8"))
        yield from whole if isinstance(whole, list) else [whole]


def text_of(row: Any, values: dict[str, Any], tokenizer: Any) -> str:
    """Return the text of a row; a chat in the form that was asked for, else in the tokenizer's own."""
    if isinstance(row, str):
        return row
    field = values["dataset_field"] or next((name for name in FIELDS if name in row), "")
    if field not in row:
        leave(f"data set {values['dataset']} has no column '{field or FIELDS[0]}', but {', '.join(row)}")
    chat = row[field]
    if isinstance(chat, str):
        return chat
    if values["chat_template"] == "chatml":
        return "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in chat)
    if not getattr(tokenizer, "chat_template", None):
        leave("the tokenizer has no template for chats: --set chat_template=chatml")
    return tokenizer.apply_chat_template(chat, tokenize=False)


def pack(texts: Iterable[str], tokenizer: Any, most: int) -> array[int]:
    """Return tokens of texts, at most so many."""
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    tokens = array("i")
    texts = iter(texts)
    while len(tokens) < most and (some := list(islice(texts, AT_ONCE))):
        for ids in tokenizer(some, add_special_tokens=False)["input_ids"]:
            tokens.extend([*ids, *end])
    return tokens[:most]


def leave(words: str) -> None:
    """End with words that explain it."""
    raise SystemExit(f"madlite: {words}")


def main() -> None:
    """Write the tokens."""
    from transformers import AutoTokenizer

    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
    source = Path(sys.argv[3])
    found = files(source, values["dataset_split"])
    if not found:
        leave(f"data set {values['dataset']} has no file of {', '.join(KINDS)}")
    most = values["steps"] * values["accumulation"] * values["micro_batch"] * values["ranks"] * values["seq_len"]
    texts = (text_of(row, values, tokenizer) for path in found for row in rows(path))
    tokens = pack(texts, tokenizer, most)
    if len(tokens) < values["seq_len"]:
        leave(f"data set {values['dataset']} has {len(tokens)} tokens, less than one sequence of {values['seq_len']}")
    if not values["model_id"] and not values["config_file"] and max(tokens) >= values["vocab_size"]:
        leave(f"the tokenizer knows token {max(tokens)}, the model {values['vocab_size']}: --set vocab_size=")
    Path(PACKED).write_bytes(tokens.tobytes())
    sys.stdout.write(f"madlite: {len(tokens)} tokens of {len(found)} files of {values['dataset']}\n")


if __name__ == "__main__":
    main()
