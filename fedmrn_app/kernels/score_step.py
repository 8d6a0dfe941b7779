"""The step of trained scores in the fastest form there is for the device; `scoring.py` defines what it computes."""

from __future__ import annotations

from fedmrn_app.kernels.scoring import Scores, ScoreStep, plain_score_step


def score_step(vectors: Scores) -> ScoreStep:
    """Return the fastest form of the step where the vectors are: a kernel on CPUs, else `plain_score_step`."""
    if vectors.scores.device.type == "cpu":
        from fedmrn_app.kernels.score_step_cpu import cpu_score_step

        return cpu_score_step(vectors)
    return plain_score_step(vectors)
