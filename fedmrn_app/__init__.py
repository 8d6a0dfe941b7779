"""Federated learning with less than one bit per weight, on Flower.

What other code may rely on:

- `fedmrn_app.tasks.task`: `Task` and `Samples`, to learn something of one's own.
- `fedmrn_app.methods.method`: the parts of a method, and `MethodConfig` (before: `Recipe`).
- `fedmrn_app.methods`: `find_methods`, `build_method`.
- `fedmrn_app.federation`: a round without Flower: `worker.Worker`, `server.open_round`, `server.close_round`,
  `client.train_client`, `loop.run_rounds`.
- `fedmrn_app.config`: `compose.compose_values`, `build.resolve_from_data` (before: `measure`), `build.read_config`,
  `build.build_worker`.
- `fedmrn_app.flower`: `local_grid.LocalGrid`, which runs any Flower app on this machine; `strategy.PayloadStrategy` and
  `round_settings.RoundSettings`, to start a run of one's own.
- `fedmrn_app.report.runs`: `load_runs` and `load_rounds`, finished runs as DataFrames.
- `fedmrn_app.noise` and `fedmrn_app.seeds`: `generate_noise`, `derive_seed`.
- `fedmrn_app.results.trained`: `load_trained`, the model that a run has left.
- `fedmrn_app.errors`: what these raise.

Everything else may change without notice.
"""
