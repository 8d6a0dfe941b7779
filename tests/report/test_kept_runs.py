"""The tables of the documentation equal those of the runs in `results/`, to the last digit."""

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import RunError
from fedmrn_app.report.comparison import HIGHER, LOWER, SAME
from fedmrn_app.report.run_names import LATTICE_ONLY
from fedmrn_app.report.runs import load_rounds, load_runs, settings_of
from fedmrn_app.results.resume import flatten
from tests.report.doc_tables import ROOT, filled, pages, parse

FILES = pages()


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


README = ROOT / "README.md"
RESULTS = "\n".join(
    file.read_text()
    for file in (*sorted((ROOT / "docs").glob("results*.md")), *sorted((ROOT / "results").rglob("*.md")))
)
KEPT = load_runs(ROOT / "results")
MADE_AGAIN = {  # with the repaired estimators of EDEN and DRIVE
    *(("table1", f"ls_{name}_s{seed}") for name in ("drive", "eden") for seed in range(3)),
    *(("server_lr_15_rounds", f"val_slr064_{name}") for name in ("drive", "eden")),
    ("lower_rates_15_rounds", "val_share0.25_eden"),
    *(("table1", f"{data}_{name}_s0") for name in ("drive", "eden") for data in ("dir", "iid")),
}
MADE_SINCE = {
    "benchmark_short",
    "learning_rates_rotated",
    "learning_rates_iid_methods",
    "close_rates_20_rounds",
    "iid_60_rounds",
    "quantized_downlink_60_rounds",
    "quantized_downlink_iid_60_rounds",
    "samples",
}


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file.name == "README.md" else pytest.mark.slow) for file in FILES],
    ids=name,
)
def test_tables_are_what_the_command_prints(file: Path) -> None:
    text = file.read_text()
    assert filled(text) == text


def test_results_stand_on_these_pages() -> None:
    docs = [f"docs/{stem}.md" for stem in ("results", "results_digits", "results_fashion_mnist", "results_settings")]
    tables = [
        f"results/{stem}.md"
        for stem in (
            "benchmark_short",
            "budget/short",
            "cifar10/tables",
            "claims",
            "digits/tables",
            "fashion_mnist/settings",
        )
    ]
    tables += ["results/fashion_mnist/tables.md", "results/samples.md"]
    assert [name(file) for file in FILES] == ["README.md", *docs, *tables]


def test_changed_number_is_found() -> None:
    text = README.read_text()
    start = text.index("<!-- fedmrn-report")
    number = re.compile(r"\d\.\d\d")
    found = number.search(text, start)
    assert found is not None
    assert filled(text[: found.start()] + "9.99" + text[found.end() :]) == text


def test_new_table_is_separated_from_the_next_paragraph() -> None:
    new = "<!-- fedmrn-report results/digits/methods -->\n\nA paragraph.\n"
    once = filled(new)
    assert once.endswith(" names no commit.\n\nA paragraph.\n")
    assert filled(once) == once


def test_kept_runs_agree_with_their_rounds() -> None:
    last = load_rounds(KEPT).groupby(level="folder", sort=False).tail(1).reset_index("round")
    assert last["round"].equals(KEPT["rounds"])
    assert last["headline"].to_numpy() == pytest.approx(KEPT["final"].to_numpy(), abs=1e-4)
    assert (KEPT["clients_failed"] == 0).all()


@pytest.mark.slow
def test_settings_are_read_as_omegaconf_reads_them() -> None:
    for folder, run in KEPT[settings_of(KEPT)][::4].astype(object).iterrows():
        values = flatten(OmegaConf.to_container(OmegaConf.load(Path(str(folder)) / "config.yaml")))  # type: ignore[arg-type]
        settings = {key: value for key, value in values.items() if key not in LATTICE_ONLY}
        assert {key: repr(run[key]) for key in settings} == {k: repr(value) for k, value in settings.items()}, folder


def test_options_that_a_run_is_older_than_have_the_value_in_effect_then() -> None:
    folder = ROOT / "results" / "fashion_mnist" / "learning_rates_rotated" / "eden_0.03"
    assert "share" not in OmegaConf.load(folder / "config.yaml").strategy
    assert KEPT["strategy.share"][str(folder)] == 1.0


def test_every_kept_run_is_in_a_table() -> None:
    folders = {
        folder
        for file in FILES
        for words in re.findall(r"<!-- fedmrn-report (.+) -->", file.read_text())
        for folder in parse(words).folders
    }
    assert list(load_runs(*folders).index) == list(KEPT.index)


@pytest.mark.slow
def test_changed_claim_is_found(tmp_path: Path) -> None:
    claims = re.search(r"<!-- claims .+ -->\n\n(?:\|.*\n)+", RESULTS)
    assert claims is not None
    assert filled(claims[0].replace("-0.88 [", "+0.88 [")).startswith(claims[0])
    assert "-0.88 [" in claims[0]
    report = "report: --against strategy=fedavg results/cifar10/label_shard_60_rounds"
    for run, verdict, error in (
        ("nobody", "higher", "0 rows are named nobody"),
        ("fedmrn local.lr=0.1", "higher", "is one seed, not higher"),
    ):
        (tmp_path / "claims.yaml").write_text(f"[{{claim: a, run: {run}, verdict: {verdict}, {report}}}]")
        with pytest.raises(RunError, match=error):
            filled(f"<!-- claims {tmp_path / 'claims.yaml'} -->\n\n")


def test_claims_say_what_their_verdicts_are() -> None:
    words = {
        HIGHER: r"above|more accurate|raises",
        LOWER: r"below|lower|less accurate|too small",
        SAME: r"as high|as accurate",
    }
    claims = yaml.safe_load((ROOT / "results" / "claims.yaml").read_text())
    assert len(claims) > 50
    for claim in claims:
        said = [verdict for verdict, pattern in words.items() if re.search(pattern, claim["claim"])]
        assert said == [claim["verdict"]], claim


@pytest.mark.parametrize("file", FILES, ids=name)
def test_intervals_in_the_text_stand_in_a_table(file: Path) -> None:
    interval = re.compile(r"\[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]")
    tables = {found for line in RESULTS.splitlines() if line.startswith("|") for found in interval.findall(line)}
    text = " ".join(line for line in file.read_text().splitlines() if not line.startswith("|"))
    assert set(interval.findall(text)) <= tables
    assert len(tables) > 10


def test_runs_of_another_estimator_are_marked() -> None:
    for folder, run in KEPT.iterrows():
        path = Path(str(folder))
        one_bit = run["strategy"] == "drive" or (run["strategy"] == "eden" and run["strategy.bits"] == 1)
        repaired = bool(MADE_SINCE & set(path.parts)) or path.parts[-2:] in MADE_AGAIN
        assert bool(run["remark"]) == (one_bit and run["dataset"] != "digits" and not repaired), path


@pytest.mark.slow
def test_commands_send_the_dense_part_as_the_kept_runs_did() -> None:
    # samples are registered in the paper's setting, whose replies hold the dense part in float32
    kept = KEPT[~KEPT["dataset"].isin(["digits", "svhn", "cifar100"])]
    fedavg = kept["strategy"] == "fedavg"
    assert set(kept[fedavg]["uplink.dense_bits"]) == {32}
    assert set(kept[~fedavg]["uplink.dense_bits"]) == {6}
    text = re.sub(r"\s+#.*", "", RESULTS)
    commands = re.findall(r"^fedmrn (experiment=.+)$|`fedmrn (experiment=[^`]+)`", text, re.MULTILINE)
    assert len(commands) > 15
    for words in ((first or second).split() for first, second in commands):
        values = compose_values([word for word in words if "NAME" not in word and "RATE" not in word])
        strategy = values["strategy"]["name"]
        # beside FedAvg the commands that show what float32 takes, and where clients evaluate, with the paper's setting
        float32 = strategy == "fedavg" or "rounds=1" in words or "evaluation.on=both" in words
        assert values["uplink"]["dense_bits"] == (32 if float32 else 6), words
