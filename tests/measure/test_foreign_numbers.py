"""Numbers of another language beside those of the result: refused or doubted, never read otherwise nor passed over."""

from __future__ import annotations

from madlite.measure.monitor import expected_steps
from madlite.measure.parse_log import read_log
from madlite.measure.performance import parse_results
from madlite.measure.verdict import Observation, judge
from madlite.model import Cause, Exit, Status
from tests.measure.checks.runs import script_plan
from tests.measure.training_logs import PLUGINS, parsed, trainer
from tests.monitors import monitored
from tests.rows import each_row

GOOD = "performance: 100 samples_per_second"
FOREIGN = (
    "12,5", "1.004,8", "1.234.567", "12,34,567", "0,512", "1'004.8", "1’004,8", "1_004", "1 004.8", "-12,5",
    "1\u00a0004,8", "1\u202f004", "\u0661\u0662\u066b\u0665", "1,5e3", "12.5,6",
)  # fmt: skip


@each_row("text", FOREIGN)
@each_row("form", ["performance: {} x", "INFO my_performance:  {} tokens/s", "performance: '{}' x"])
@each_row("where", ["before", "after", "between"])
def test_a_line_whose_number_is_another_language_s_doubts_the_others(text, form, where):
    odd = form.format(text)
    lines = {"before": [odd, GOOD], "after": [GOOD, odd], "between": [GOOD, odd, "performance: 12.5 x"]}[where]
    verdict = parsed(lines).verdict
    (metric,) = verdict.metrics
    assert (verdict.status, metric.text) == (Status.SUCCESS, "100")
    (doubt,) = verdict.suspect
    assert repr(text) in ascii(doubt) or f"'{text}'" in doubt


@each_row("text", FOREIGN)
@each_row("form", ["performance: {} x", "INFO performance: {}\tx", "performance:{} x"])
def test_where_it_is_the_only_line_the_answer_names_it(text, form):
    verdict = parsed([form.format(text)]).verdict
    (metric,) = verdict.metrics
    assert (verdict.status, verdict.cause, metric.text, metric.metric) == (Status.FAILURE, Cause.BAD_NUMBER, "", "x")
    assert f"the number '{text}' in the line" in verdict.reason and "cannot be read" in verdict.reason
    assert verdict.evidence == form.format(text)


def test_a_line_that_ends_within_its_number_may_be_a_number_that_goes_on():
    verdict = read_log("a log", iter([b"performance: 12,5"]), PLUGINS, None).verdict
    assert verdict.status is Status.FAILURE and "the log ends within the line of its result" in verdict.reason


NO_NUMBERS = (
    "performance: fast", "performance: 3/4 of it", "performance: 2.5.1 is the version", "performance: 22.11.2026 x",
    "performance: 12:30:05 done", "performance: 100% of the ranks", "performance: 100, 200, 300 x", "performance:",
    "performance: 10-20 x", "performance: v1,2", "performance: 1,234.5 x", "performance: 2,872", "performance: 8k",
    "performance: 1e5 x", "performance: 12,500,000 tokens", "see performance: 5.", "peak performance, 12,5 x",
)  # fmt: skip


@each_row("line", NO_NUMBERS)
def test_what_only_looks_like_one_is_no_doubt(line):
    verdict = parsed([GOOD, line, line]).verdict
    assert (verdict.status, verdict.suspect) == (Status.SUCCESS, ())


def bare(lines: list[str]) -> list[str]:
    """Return the lines without the quotes around their numbers, as transformers 4 prints them."""
    return [line.replace(": '", ": ").replace("', '", ", '").replace("'}", "}") for line in lines]


def of_commas(lines: list[str]) -> list[str]:
    return [line.replace(".", ",") for line in lines]


LOSSES = [2.4165, 2.3107, 2.2251, 2.1, 2.0431, 1.998]
STEPS, END = trainer(LOSSES)[:-1], trainer(LOSSES)[-1:]


@each_row("made", [list, bare], ids=["quoted", "bare"])
@each_row("end", ["34,57", "34,570", "1.234,5", "1'234.5", "1_234", "1 234,5", "1.234.567"])
def test_a_trainer_s_figure_is_refused_whatever_it_would_be(made, end):
    lines = made([*STEPS, END[0].replace("34.57", end)])
    verdict = parsed(lines).verdict
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.BAD_NUMBER), verdict
    assert f"the number '{end}' in the line" in verdict.reason


@each_row("made", [list, bare], ids=["quoted", "bare"])
@each_row("line", ["performance: 34.57 samples_per_second", "train_samples_per_second = 34.57"])
def test_a_number_beside_a_trainer_s_dictionaries_of_commas_is_doubted(made, line):
    verdict = parsed([*made(of_commas([*STEPS, *END])), line]).verdict
    assert verdict.status is Status.SUCCESS and verdict.metrics[0].text == "34.57"
    assert "a loss is '2,4165', which is no number" in verdict.suspect
    assert any("is '34,57', which is no number" in one for one in verdict.suspect)


@each_row("made", [list, bare], ids=["quoted", "bare"])
@each_row("text", ["0,4165", "1,417", "1.234,5"])
def test_a_trainer_s_loss_of_commas_is_no_loss(made, text):
    reading = parsed(made([*(step.replace("2.4165", text) for step in STEPS), *END]))
    assert reading.verdict.suspect == (f"a loss is '{text}', which is no number",)


@each_row("name", ["train_runtime", "train_steps_per_second", "train_loss", "epoch"])
def test_one_figure_of_another_language_doubts_those_beside_it(name):
    others = f"'train_steps_per_second': '1.4', 'epoch': '0.06', '{name}': '12,5'}}"
    verdict = parsed([*STEPS, END[0].replace("'train_loss': '2.4165'}", others)]).verdict
    assert verdict.metrics[0].text == "34.57" and verdict.suspect[0].startswith(f"{name} is '12,5', which is no number")


@each_row("made", [list, bare], ids=["quoted", "bare"])
def test_a_trainer_s_own_numbers_are_no_doubt(made):
    more = f"{END[0][:-1]}, 'version': '2.5.1', 'total_flos': '1e+15', 'note': 'a, b', 'sizes': [1,2]}}"
    for lines in ([*STEPS, *END], [*STEPS, more], [*STEPS, *END, "train_samples_per_second = 1,034.57"]):
        verdict = parsed(made(lines)).verdict
        assert (verdict.status, verdict.suspect) == (Status.SUCCESS, ())


HEAD = "model,performance,metric,tp\n"


@each_row(
    ("head", "row", "columns"),
    [
        ("model,performance,metric", "m,12,5,x", {}),
        ("model,performance,metric", "m,5.121,5,tokens/s", {}),
        ("model,performance,metric", "m,12", {}),
        ("model,performance,metric", "m,12,5", {}),
        ("model,performance,metric,", "m,12,5,x", {}),
        ("model,performance,metric,tp", "m,12,5,tokens/s,8", {}),
        ("model,performance,metric,tp", "m,123", {}),
        ("tp,model,performance,metric", "8,m,12,5,tokens/s", {"tp": "8"}),
        ("model,metric,performance", "m,tokens/s,12,5", {}),
        ("model,metric,performance,tp", "m,tokens/s,12,5,8", {"tp": ""}),
    ],
)
def test_a_record_that_does_not_fit_its_header_has_no_number(head, row, columns):
    found = parse_results("r.csv", f"{head}\na,{row.partition(',')[2]}\n{row}\n".encode())
    bad = found.metrics[-1]
    assert (bad.status, bad.text, bad.value, bad.cause) == (Status.FAILURE, "", None, Cause.BAD_NUMBER)
    assert bad.label == "m" and bad.metric in ("", "tokens/s"), "no cell that may be another's"
    assert {name: bad.columns.get(name, "") for name in columns} == columns
    assert all(metric.text == "" for metric in found.metrics)
    fits = row.count(",") == head.count(",")
    assert fits or any("record 1 has" in note and "(2 such records)" in note for note in found.notes)


@each_row("row", ["m,12,x,8", "m,12,x,", "m,12,x,8,,", " m, 12, x, 8", 'm,"1,200",x,8', '"m,n",12,x,8'])
def test_a_record_that_fits_is_a_result(row):
    found = parse_results("r.csv", f"{HEAD}{row}\n".encode())
    assert [metric.status for metric in found.metrics] == [Status.SUCCESS] and found.notes == ()
    assert found.metrics[0].metric == "x"


@each_row(("lines", "status"), [([GOOD, "performance: 12,5 x"], "SUCCESS"), (["performance: 12,5 x"], "FAILURE")])
def test_a_run_of_a_script_has_the_same_answer(lines, status):
    log = monitored([], lines)
    verdict = judge(script_plan(), Observation(exit=Exit(code=0, duration_s=1e6)), log)
    told = verdict.suspect[0] if status == "SUCCESS" else verdict.reason
    assert verdict.status.value == status and "'12,5' in" in told


@each_row(("text", "steps"), [("1,200", 1200), ("1_200", 1200), ("12,5", None), ("1,2", None), ("", None)])
def test_the_steps_that_a_log_says_are_a_whole_number(text, steps):
    assert expected_steps({"steps": text}) == steps
