"""The tables of the documentation equal those of the runs in `results/`, to the last digit."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import RunError
from fedmrn_app.report.comparison import HIGHER, LOWER, SAME
from fedmrn_app.report.runs import find_summaries, read_run
from fedmrn_app.results.resume import flatten
from tests.report.doc_tables import ROOT, filled, pages, parse

FILES = pages()
README = ROOT / "README.md"
RESULTS = "\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("results*.md")))
RUNS = sorted((ROOT / "results").rglob("summary.json"))
MADE_AGAIN = {  # with the repaired estimators of EDEN and DRIVE
    *(("table1", f"ls_{name}_s{seed}") for name in ("drive", "eden") for seed in range(3)),
    *(("server_lr_15_rounds", f"val_slr064_{name}") for name in ("drive", "eden")),
    ("lower_rates_15_rounds", "val_share0.25_eden"),
    *(("table1", f"{data}_{name}_s0") for name in ("drive", "eden") for data in ("dir", "iid")),
}
MADE_SINCE = {
    "learning_rates_rotated",
    "learning_rates_iid_methods",
    "close_rates_20_rounds",
    "iid_60_rounds",
    "quantized_downlink_60_rounds",
    "quantized_downlink_iid_60_rounds",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_what_the_command_prints(file: Path) -> None:
    text = file.read_text()
    assert filled(text) == text


def test_results_stand_on_these_pages() -> None:
    results = ("results", "results_digits", "results_fashion_mnist", "results_settings", "scale")
    assert [file.stem for file in FILES] == ["README", *results]


def test_changed_number_is_found() -> None:
    text = README.read_text()
    start = text.index("<!-- fedmrn-report")
    number = re.compile(r"\d\.\d{3}")
    found = number.search(text, start)
    assert found is not None
    assert filled(text[: found.start()] + "9.999" + text[found.end() :]) == text


def test_new_table_is_separated_from_the_next_paragraph() -> None:
    new = "<!-- fedmrn-report results/digits/methods -->\n\nA paragraph.\n"
    once = filled(new)
    assert once.endswith(" is float32.\n\nA paragraph.\n")
    assert filled(once) == once


def test_kept_runs_agree_with_their_rounds() -> None:
    for path in RUNS:
        run = read_run(path, with_settings=False)
        metric = run.summary["metric"]
        assert len(run.rounds) == run.summary["rounds"], path
        assert run.rounds[metric].iloc[-1] == pytest.approx(run.summary[f"final_{metric}"], abs=1e-4), path
        assert run.summary["clients_failed"] == 0, path


def test_settings_are_read_as_omegaconf_reads_them() -> None:
    for path in RUNS[::4]:
        values = flatten(OmegaConf.to_container(OmegaConf.load(path.with_name("config.yaml"))))  # type: ignore[arg-type]
        settings = read_run(path).settings
        assert {key: repr(settings[key]) for key in values if key in settings} == {
            key: repr(value) for key, value in values.items() if key in settings
        }, path


def test_options_that_a_run_is_older_than_have_the_value_in_effect_then() -> None:
    folder = ROOT / "results" / "fashion_mnist" / "learning_rates_rotated" / "eden_0.03"
    assert "share" not in OmegaConf.load(folder / "config.yaml").strategy
    assert read_run(folder / "summary.json").settings["strategy.share"] == 1.0


def test_every_kept_run_is_in_a_table() -> None:
    folders = {
        folder
        for file in FILES
        for words in re.findall(r"<!-- fedmrn-report (.+) -->", file.read_text())
        for folder in parse(words).folders
    }
    assert find_summaries(sorted(folders)) == find_summaries([ROOT / "results"])


def test_changed_claim_is_found(tmp_path: Path) -> None:
    claims = re.search(r"<!-- claims .+ -->\n\n(?:\|.*\n)+", RESULTS)
    assert claims is not None
    assert filled(claims[0].replace("-0.88 [", "+0.88 [")).startswith(claims[0])
    assert "-0.88 [" in claims[0]
    (tmp_path / "claims.yaml").write_text(
        "[{claim: a, run: nobody, report: --against strategy=fedavg results/cifar10/label_shard_60_rounds, outcome: b}]"
    )
    with pytest.raises(RunError, match="0 rows are named nobody"):
        filled(f"<!-- claims {tmp_path / 'claims.yaml'} -->\n\n")


def test_only_claims_with_a_verdict_are_kept() -> None:
    cells = [[cell.strip() for cell in line.split("|")] for line in RESULTS.splitlines() if line.count("|") == 9]
    claims = {row[1]: row for row in cells if row[8].startswith(("kept", "taken back", "now"))}
    assert len(claims) > 20
    for row in claims.values():
        verdict = row[5]
        assert row[8].startswith("kept") == (verdict in (HIGHER, LOWER)), row
        assert row[8].startswith("now") == (verdict == SAME), row
    assert {name[:2] for name in claims if re.match(r"\d\.", name)} == {f"{number}." for number in range(1, 9)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_intervals_in_the_text_stand_in_a_table(file: Path) -> None:
    interval = re.compile(r"\[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]")
    tables = {found for line in RESULTS.splitlines() if line.startswith("|") for found in interval.findall(line)}
    text = " ".join(line for line in file.read_text().splitlines() if not line.startswith("|"))
    assert set(interval.findall(text)) <= tables
    assert len(tables) > 10


def test_runs_of_another_estimator_are_marked() -> None:
    for path in RUNS:
        run = read_run(path)
        one_bit = run.strategy == "drive" or (run.strategy == "eden" and run.settings["strategy.bits"] == 1)
        repaired = bool(MADE_SINCE & set(path.parts)) or path.parts[-3:-1] in MADE_AGAIN
        assert bool(run.remark) == (one_bit and run.summary["dataset"] != "digits" and not repaired), path


def test_commands_send_the_dense_part_as_the_kept_runs_did() -> None:
    kept: dict[str, set[int]] = {}
    for path in RUNS:
        run = read_run(path)
        if run.summary["dataset"] != "digits":
            kept.setdefault(run.strategy, set()).add(run.settings["uplink.dense_bits"])
    assert kept.pop("fedavg") == {32}
    assert set().union(*kept.values()) == {6}
    text = re.sub(r"\s+#.*", "", RESULTS)
    commands = re.findall(r"^fedmrn (experiment=.+)$|`fedmrn (experiment=[^`]+)`", text, re.MULTILINE)
    assert len(commands) > 15
    for words in ((first or second).split() for first, second in commands):
        values = compose_values([word for word in words if "NAME" not in word and "RATE" not in word])
        strategy = values["strategy"]["name"]
        float32 = strategy == "fedavg" or "rounds=1" in words  # the command that shows what float32 takes
        assert values["uplink"]["dense_bits"] == (32 if float32 else 6), words
