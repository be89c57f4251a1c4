"""What lines of a log mark beside a reader's steps: losses, unread numbers, a framework's own summary."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from datetime import date

from msgspec.structs import replace

from madlite.measure.lines import Block, is_warning, lines_with
from madlite.measure.rules import plain
from madlite.measure.steps import Steps
from madlite.model import Quantity, Step

# What is noted beside the steps of one training: what was done between them, which of them is no number, when.

# When a line of a log was written, by its own time stamp: in `madlite parse` there is no other clock.
#
# Dates as ISO 8601 and loggers have them (`2026-11-22 10:00:03,123`, `[20261122 10:00:03]`), or a time of day alone.

_HEAD = 400  # characters in which a stamp is looked for
_TIME = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?![\d<:])"  # a progress bar's time is followed by <
_DATED = re.compile(rf"(?<!\d)(\d{{4}})([-/]?)(\d\d)\2(\d\d)[T _]{_TIME}", re.ASCII)
_OF_DAY = re.compile(rf"(?<![\d:]){_TIME}", re.ASCII)
_DAY_S = 86400.0


def stamp_s(text: str) -> float:
    """Return the seconds of a line's first time stamp, since any fixed moment; NaN where it has none."""
    if ":" not in text[:_HEAD]:
        return math.nan
    if found := _DATED.search(text, 0, _HEAD):
        year, _, month, day, *clock = found.groups()
        try:
            return date(int(year), int(month), int(day)).toordinal() * _DAY_S + _of_day(clock)
        except ValueError:
            return math.nan
    found = _OF_DAY.search(text, 0, _HEAD)
    return _of_day(list(found.groups())) if found else math.nan


def _of_day(clock: list[str | None]) -> float:
    hours, minutes, seconds, part = (text or "0" for text in clock)
    return int(hours) * 3600 + int(minutes) * 60 + float(f"{seconds}.{part}")


# what a trainer does beside its steps, by a line between two of them; and texts of which such a line has one
_ASIDE = re.compile(
    r"(?i)(?:\b|_)(?:valid|eval|val[ _/]?loss|test[ _/]?loss|checkpoint|ckpt|sav(?:e|ed|ing)\b|snapshot|profil|compil"
    r"|dump(?:s|ed|ing)?\b|generating|sampling)"
)
_ASIDE_TEXTS = (
    *("val", "Val", "VAL", "heckpoint", "HECKPOINT", "ckpt", "sav", "Sav", "SAV", "napshot", "rofil", "ompil", "ump"),
    *("enerating", "ampling", "est loss", "est_loss"),
)
_FEWEST, _MOSTLY = 3, 0.9  # numbers that two logs of one training share, and the part of them that is the same


class TrainingState:
    """Of the training that goes on.

    `ended_before` where one before it had the framework's end mark; `before` are the steps of the one before it, and
    `before_s` the time of their last one; `first_stamp_s` is the log's own first time stamp, NaN where its lines have
    another time or none.
    """

    def __init__(self) -> None:
        self.ended_before, self.first_stamp_s = False, math.nan
        self.before, self.before_s = Steps(), math.nan
        self.overlaps = False  # a step's own stamp is earlier than that of the training before
        self.unread: dict[Quantity, str] = {}  # what a step should say, and the first text of it that is no number
        self.computed: dict[str, str] = {}  # figures of the summary that are of the steps which were read
        self.summary_doubt: str | None = None  # None: nobody compared the summary with the steps
        self.interrupted = array("q")  # steps before whose line something else was done than training
        self.is_aside = False  # since the last step
        self.noted = self.skipped = 0  # lines of steps, and those of them of which the optimizer left out each

    def of_another(self, steps: Steps, *, ended: bool) -> TrainingState:
        """Return the marks of a training after this one, which has these steps."""
        marks = TrainingState()
        marks.ended_before, marks.first_stamp_s = self.ended_before or ended, self.first_stamp_s
        reach = steps.reach()
        marks.before, marks.before_s = steps, (steps.reported_s(reach[1]) if reach else None) or math.nan
        return marks

    def is_of_another_rank(self, steps: Steps) -> bool:
        """Return whether these steps are those of the training before once more, as another of its ranks told them.

        Both were at the same time by the log's stamps, and have the same losses, which ranks share, but other numbers
        beside them: else a log would stand there twice.
        """
        if not self.overlaps:
            return False
        losses, others = (_alike(self.before, steps, of_loss) for of_loss in (True, False))
        return losses >= _MOSTLY and others < _MOSTLY

    def check_aside(self, text: str) -> None:
        """Check a line between two steps."""
        self.is_aside = self.is_aside or _ASIDE.search(text) is not None

    def note(self, step: Step, *, is_other_rank: bool) -> None:
        """Take a training step in; the same one of another rank does not show what was done since."""
        self.noted, self.skipped = self.noted + 1, self.skipped + step.skipped
        for quantity, odd in step.unread.items():
            self.unread.setdefault(quantity, odd)
        if self.is_aside and not is_other_rank:
            self.interrupted.append(step.n)
            self.is_aside = False

    def stamped(self, step: Step, text: str) -> Step:
        """Return a step of a log that madlite did not make with the time of its line's own stamp."""
        if not text or not math.isnan(step.t_s):
            return step
        at = stamp_s(text)
        if math.isnan(self.first_stamp_s):
            self.first_stamp_s = at
        if not math.isfinite(at):
            return step
        t_s = 1.0 + at - self.first_stamp_s
        self.overlaps = self.overlaps or t_s < self.before_s
        return replace(step, t_s=t_s)


def _alike(before: Steps, after: Steps, of_loss: bool) -> float:
    """Return the part of the numbers of steps that both have which are the same; 0 where there are too few."""
    same = count = 0
    for quantity in before.quantities() & after.quantities():
        if (quantity == Quantity.LOSS) == of_loss:
            curves = (before.curve(quantity), after.curve(quantity))
            old, new = (dict(zip(curve.ns, curve.values, strict=True)) for curve in curves)
            both = old.keys() & new.keys()
            count += len(both)
            same += sum(1 for n in both if old[n] == new[n])
    return same / count if count >= _FEWEST else 0.0


def may_be_aside(text: str) -> bool:
    """Return whether one of many lines may be of something else than training: a quick test."""
    return any(item in text for item in _ASIDE_TEXTS)


# Losses in a log: where a line reports one, and what it is worth.

# What a line reports of a training's loss, by the words around it: a list of those that a step's own loss has.
#
# Any other word means another loss: the best one, the one before, a smoothed one, one on other data.


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STEP_WORDS = _split("step iter iteration itr it epoch ep batch minibatch update round")
_MEANS = _split("mean avg avr average averaged running")  # of several steps: NaN before there are enough
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
    r"(?P<value>(?:nan|inf(?:inity)?)(?!\w|-\w|[ _-](?:count|check|guard|filter|ratio|rate))|\d|\.\d)"
)
_HELD_OUT = (
    r"(?<![a-z])(?:eval\w*|valid(?![ _-]?(?:tok|label|sample))\w*|val(?![a-z])|test(?:ing)?(?![a-z])|dev(?![a-z\d])"
    r"|h[eo]ld[ _-]?out|inference|calibrat\w*|sanity|reference)"
)
_OF_HELD_OUT = re.compile(_HELD_OUT)
# what a training's own line reports beside its loss
_HELD_OUT_FIGURE = re.compile(
    rf"{_HELD_OUT}[ _/.\-](?:(?:mean|avg)[ _])?(?:loss|acc\w*|ppl|perplexity|bpb|f1|wer|bleu|score)[\"']?"
    r"\s{0,4}[:=]?\s{0,4}[\"'(\[]{0,2}[-+]?(?:\d[\w.+-]*|nan|inf|none|n/a)%?"
)


def is_nan_loss(line: str) -> bool:
    """Return whether a line reports that the loss of a training's step is NaN or infinite.

    The line names a step, epoch or the like with its number.  None is a warning, a line of an evaluation, nor one that
    has a finite loss beside it: then NaN is what a mean has before there are losses enough.
    """
    text = line.lower()
    if not any(_is_odd(item) for item in _LOSS.finditer(text)) or is_warning(line):
        return False
    text = _HELD_OUT_FIGURE.sub(" ", text)
    if _OF_HELD_OUT.search(text):
        return False
    bad, fine = ([*_losses(text, of_nan=of_nan)] for of_nan in (True, False))
    if not any(_counts(item, fine) for item in bad):
        return False
    return _OF_STEP.search(text) is not None or any(item & _STEP_WORDS for item in bad)


def _counts(bad: frozenset[str], fine: Sequence[frozenset[str]]) -> bool:
    """Return whether a loss of NaN is the training's, whatever the finite ones beside it are; a total has all parts."""
    return "total" in bad or (all(item & _MEANS for item in fine) and not (bad & _MEANS and fine))


def _losses(text: str, *, of_nan: bool) -> Iterator[frozenset[str]]:
    """Yield the words of the losses of a training's steps in a line of small letters, finite ones or the others."""
    for item in _LOSS.finditer(text):
        words = _words_of(text[max(0, item.start() - _FAR) : item.start()], item["after"])
        if words is not None and _is_odd(item) == of_nan:
            yield words


def _is_odd(loss: re.Match[str]) -> bool:
    """Return whether a loss is NaN or infinite."""
    return loss["value"][0] in "ni"


def _words_of(before: str, after: str | None) -> frozenset[str] | None:
    """Return the words by which a loss is called, None where it is not that of a training's step."""
    part = _CUT.split(before)[-1]
    if not _OTHERS.isdisjoint(_WORD.findall(part)):
        return None
    found = {after, "mean"} if after == "epoch" else {after} if after else set()  # Lightning's, of the epoch before
    for word in reversed(_WORD.findall(_PART.split(part)[-1])):
        if word in _JOINTS:
            break
        found.add(word)
    return frozenset(found) if found <= _WORDS else None


# Find what lines report of the loss, whichever reader parses the steps: that it is NaN, and the
# size of the vocabulary.
#
# A reader whose pattern takes digits alone sees no step where the loss is NaN, and a script's log may have no reader.

_NORM = re.compile(
    r"grad(?:ient)?s?[ _.\-]?norm[\w/]{0,20}[\"']{0,2}\s{0,4}[:=]\s{0,8}"
    r"(?:[a-z][\w.]{0,20}\([\['\"]{0,2})?[-+]?nan(?!\w)(?!\s{1,8}[a-z]{1,20}\s[a-z])"  # not before a sentence's words
)
_VOCABULARY = re.compile(r"\b(?:padded_)?vocab_size\b[\"']?\s{0,4}(?:[:=]|\.{2,80})\s{0,4}(\d{2,9})\b")
_LONGEST = 300  # characters of such a line that are kept
_ODD = ("nan", "NaN", "NAN")
_INFINITE = tuple(re.compile(rf"{word}(?!o|(?!inity)[a-zA-Z])") for word in ("inf", "Inf", "INF"))


class LossScan:
    """Store the first line with a loss or gradient norm of NaN, and the largest size of a vocabulary."""

    def __init__(self) -> None:
        self.nan = self.nan_norm = ""
        self.vocabulary = 0

    def feed(self, block: Block) -> None:
        """Take lines in."""
        small = block.text.lower() if _may_be_odd(block.text) else ""
        if not self.nan and "loss" in small:
            self.nan = next((plain(line)[:_LONGEST] for line in block.lines if _is_nan(line)), "")
        if not self.nan_norm and "norm" in small and _NORM.search(small):
            norms = (line for line in block.lines if _NORM.search(line.lower()) and not is_warning(line))
            self.nan_norm = next((plain(line)[:_LONGEST] for line in norms), "")
        if "vocab_size" in block.text:
            found = (_VOCABULARY.search(line) for _, line in lines_with(block.text, "vocab_size"))
            self.vocabulary = max([self.vocabulary, *(int(item[1]) for item in found if item)])


def _may_be_odd(text: str) -> bool:
    return any(word in text for word in _ODD) or any(word.search(text) for word in _INFINITE)


def _is_nan(line: str) -> bool:
    small = line.lower()
    return ("nan" in small or "inf" in small) and "loss" in small and is_nan_loss(plain(line))
