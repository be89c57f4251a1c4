"""Losses in a log: where a line says one, and what it is worth."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite.measure.grammar import is_warning
from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import plain
from madlite.model import Value

# What a line says of a training's loss, by the words around it: a list of those that a step's own loss has.
#
# Any other word tells of another loss: the best one, the one before, a smoothed one, one on other data.


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STEP_WORDS = _split("step iter iteration itr it epoch ep batch minibatch update round")
_MEANS = _split("mean avg average averaged running")  # of several steps: NaN before there are enough
_WORDS = (
    _STEP_WORDS
    | _MEANS
    | _split(
        "train training trainer pretrain pretraining finetune finetuning lm mlm clm ce xent nll ctc mse cross entropy "
        "language modeling modelling model world image text audio video sft dpo policy diffusion denoising contrastive "
        "reconstruction distillation kd generator discriminator student main current cur this final total overall "
        "combined sum summed reduced scaled unscaled raw value global local micro macro rank"
    )
)
# before these, units among them, nothing is said of what loss it is
_JOINTS = _split(
    "the a an its and with has had gives gave got at to now finished done completed info debug error critical notice "
    "s ms us sec secs second seconds mins hr tok toks token tokens sample samples k m b gb gib mb mib kb kib tflops "
    "steps iters iterations epochs batches updates nan inf none"
)
# and these, further away, that it is another one or none at all
_OTHERS = _split(
    "best lowest highest min max minimum maximum prev previous last ema smoothed aux auxiliary initial if whether "
    "unless when until would should could might may never no not without check checks checking"
)
_FAR = 80  # characters before a loss whose words may be of it
_CUT = re.compile(r"[,;|\d\]})]")
_PART = re.compile(r"[^a-z \t_/.\-]")
_WORD = re.compile(r"[a-z]+")

_STEP = f"(?:{'|'.join(sorted(_STEP_WORDS))})s?"
_OF_STEP = re.compile(
    rf"(?<![a-z]){_STEP}(?![a-z])[^a-z\d]{{0,20}}(?:(?:no|nr|num|number|index|idx)[^a-z\d]{{1,3}})?\d"
    r"|\d (?:step|iteration|epoch|batche|update)s\b"
    r"|\d/\d{1,12} \[\d{1,9}:\d\d"  # a progress bar
)
_LOSS = re.compile(
    r"loss(?:es)?(?![a-z])(?:[ \t_/.\-]{0,3}[(\[]?(?P<after>[a-z]{2,16})[)\]]?)??"
    rf"(?:\s?(?:at|after|for|in|of|on|@|\(|\[)\s?(?:{_STEP})?[^a-z\d]{{0,3}}\d[\d,/.]{{0,20}}[)\]]?)?"
    r"[\"']{0,2}(?:\s{0,4}(?:=>|->|[:=])\s{0,8}|\s{1,20}(?:(?:is|was|became|has become|turned|went)\s(?:to |now )?)?)"
    r"(?:[a-z][\w.]{0,20}\()?[\[(\"']{0,3}[-+]?"
    r"(?P<value>nan(?!\w|-\w|[ _-](?:count|check|guard|filter|ratio|rate))|\d|\.\d)"
)
_HELD_OUT = (
    r"(?<![a-z])(?:eval\w*|valid(?![ _-]?(?:tok|label|sample))\w*|val(?![a-z])|test(?:ing)?(?![a-z])|dev(?![a-z\d])"
    r"|h[eo]ld[ _-]?out|inference|calibrat\w*|sanity|reference)"
)
_OF_HELD_OUT = re.compile(_HELD_OUT)
# what a training's own line says beside its loss
_HELD_OUT_FIGURE = re.compile(
    rf"{_HELD_OUT}[ _/.\-](?:(?:mean|avg)[ _])?(?:loss|acc\w*|ppl|perplexity|bpb|f1|wer|bleu|score)[\"']?"
    r"\s{0,4}[:=]?\s{0,4}[\"'(\[]{0,2}[-+]?(?:\d[\w.+-]*|nan|inf|none|n/a)%?"
)


class _Loss(Value, frozen=True):
    is_nan: bool
    words: frozenset[str]

    @property
    def is_mean(self) -> bool:
        return bool(self.words & _MEANS)


def is_nan_loss(line: str) -> bool:
    """Say whether a line tells that the loss of a training's step is NaN.

    The line names a step, epoch or the like with its number.  None is a warning, a line of an evaluation, nor one that
    has a finite loss beside it: then NaN is what a mean has before there are losses enough.
    """
    text = line.lower()
    if all(one["value"] != "nan" for one in _LOSS.finditer(text)) or is_warning(line):
        return False
    text = _HELD_OUT_FIGURE.sub(" ", text)
    if _OF_HELD_OUT.search(text):
        return False
    losses = list(_losses(text))
    bad, fine = [one for one in losses if one.is_nan], [one for one in losses if not one.is_nan]
    if not any(_counts(one, fine) for one in bad):
        return False
    return _OF_STEP.search(text) is not None or any(one.words & _STEP_WORDS for one in bad)


def _counts(bad: _Loss, fine: list[_Loss]) -> bool:
    """Say whether a loss of NaN is the training's, whatever the finite ones beside it are; a total has all parts."""
    return "total" in bad.words or (all(one.is_mean for one in fine) and not (bad.is_mean and fine))


def _losses(text: str) -> Iterator[_Loss]:
    """Yield the losses of a training's steps in a line of small letters."""
    for one in _LOSS.finditer(text):
        words = _words_of(text[max(0, one.start() - _FAR) : one.start()], one["after"])
        if words is not None:
            yield _Loss(is_nan=one["value"] == "nan", words=words)


def _words_of(before: str, after: str | None) -> frozenset[str] | None:
    """Return the words by which a loss is called, None where it is not that of a training's step."""
    part = _CUT.split(before)[-1]
    if not _OTHERS.isdisjoint(_WORD.findall(part)):
        return None
    found = {after} if after else set()
    for word in reversed(_WORD.findall(_PART.split(part)[-1])):
        if word in _JOINTS:
            break
        found.add(word)
    return frozenset(found) if found <= _WORDS else None


# Looks for what lines say of the loss, whoever reads their steps: that it is NaN, and of how many tokens it chooses.
#
# A reader whose pattern takes digits alone sees no step where the loss is NaN, and a script's log may have no reader.

_VOCABULARY = re.compile(r"\b(?:padded_)?vocab_size\b[\"']?\s{0,4}(?:[:=]|\.{2,80})\s{0,4}(\d{2,9})\b")
_LONGEST = 300  # characters of such a line that are kept


class LossMarks:
    """Keeps the first line with a loss of NaN, and the size of the vocabulary; of several models the largest."""

    def __init__(self) -> None:
        self.nan = ""
        self.vocabulary = 0

    def feed(self, block: Block) -> None:
        """Take lines in."""
        if not self.nan:
            small = block.text.lower() if "nan" in block.text or "NaN" in block.text or "NAN" in block.text else ""
            if "loss" in small:
                self.nan = next((plain(line)[:_LONGEST] for line in block.lines if _is_nan(line)), "")
        if "vocab_size" in block.text:
            found = (_VOCABULARY.search(line) for _, line in lines_with(block.text, "vocab_size"))
            self.vocabulary = max([self.vocabulary, *(int(one[1]) for one in found if one)])


def _is_nan(line: str) -> bool:
    small = line.lower()
    return "nan" in small and "loss" in small and is_nan_loss(plain(line))
