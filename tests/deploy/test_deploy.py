"""The operator's folder: private keys, bundles, certificates, connections, services, and the command's refusals."""

import base64
import json
import shlex
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from fedmrn_app.deploy import certificates, cli
from fedmrn_app.deploy import service_files as units
from fedmrn_app.deploy.certificates import public_pem
from fedmrn_app.deploy.device import check_server, explain, read_bundle, refused_certificate
from fedmrn_app.deploy.folder import Federation, create, load, renew_server
from fedmrn_app.deploy.gate_keys import Keys
from fedmrn_app.deploy.register import operator
from fedmrn_app.deploy.server import start_server, superlink_words
from fedmrn_app.errors import ConfigError, FedMRNError, RunError
from fedmrn_app.flower.device_records import DeviceRecord, DeviceRecords
from fedmrn_app.runtime.connection import add_connection, read_connection
from fedmrn_app.runtime.remote import take_on


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create(tmp_path / "fed", ["127.0.0.1", "server.example"], 2, port=49390, control_port=49391)


@contextmanager
def refused(kind: type[FedMRNError], code: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.code == code


def test_private_keys_are_readable_by_their_owner_only(federation: Federation) -> None:
    secret = [
        file for file in federation.path.rglob("*") if b"PRIVATE" in (file.read_bytes() if file.is_file() else b"")
    ]
    assert len(secret) == 5  # authority, operator, server, two devices
    assert {stat.S_IMODE(file.stat().st_mode) for file in secret} == {0o600}
    assert stat.S_IMODE(federation.path.stat().st_mode) == 0o700
    assert (federation.path / ".gitignore").read_text() == "*\n"


def test_bundle_holds_the_files_of_its_device_only(federation: Federation) -> None:
    units.write_device_services(federation, "device-1")
    bundle = federation.bundle("device-1")
    services = {"fedmrn-device.service", "compose.yaml", "Dockerfile", "requirements.txt"}
    known = {"ca.crt", "operator.pub", "roster.json"}
    assert {file.name for file in bundle.iterdir()} == {"device.key", "device.pub", "device.json", *known, *services}
    other = federation.bundle("device-0") / "device.key"
    for file in bundle.iterdir():
        assert file.read_bytes() not in (other.read_bytes(), federation.authority_key.read_bytes())
    read = read_bundle(bundle)
    assert (read.server, read.node_config) == ("127.0.0.1:49390", "partition-id=1 num-partitions=2")
    (bundle / "device.key").chmod(0o644)
    with refused(ConfigError, "permissions"):
        read_bundle(bundle)


def test_images_install_what_their_machine_needs(federation: Federation) -> None:
    units.write_device_services(federation, "device-1")
    units.write_server_services(federation)
    installed = {}
    for extra, folder in (("device", federation.bundle("device-1")), ("server", federation.path / "server")):
        first, *pinned = (folder / "requirements.txt").read_text().splitlines()
        assert first == f"fedmrn[{extra}]=={version('fedmrn')}"
        installed[extra] = {line.partition("==")[0] for line in pinned}
        compose = yaml.safe_load((folder / "compose.yaml").read_text())
        (service,) = compose["services"].values()
        assert service["image"] == f"fedmrn-{extra}:{version('fedmrn')}"
    assert (
        installed["device"] == installed["server"] == {"flwr", "torch", "numpy", "numba", "hydra-core", "safetensors"}
    )


def test_settings_are_read_back_unchanged(federation: Federation) -> None:
    federation.devices["device-1"].config = 'data-path="/data"'
    federation.save()
    again = load(federation.path)
    assert again == federation
    assert again.device_name("1") == "device-1"
    with refused(ConfigError, "unknown"):
        again.device_name("7")
    (federation.path / "federation.json").write_text("{")
    with refused(ConfigError, "unreadable"):
        load(federation.path)


def test_keys_tell_devices_apart(federation: Federation) -> None:
    keys = Keys(federation.path)
    mine = base64.b64encode(public_pem(federation.public_key("device-1"))).decode()
    assert keys.name(mine) == "device-1"
    assert keys.name(base64.b64encode(b"another").decode()) is None
    assert keys.name("\u00e4") is None
    assert keys.refusal(mine) == "its key is not registered yet"
    federation.devices["device-1"].revoked = True
    federation.save()
    assert keys.refusal(mine) == "its key was revoked"
    federation.devices["device-1"].node_id = 5
    federation.save()
    assert keys.refusal(mine).startswith("it is connected already")


@contextmanager
def served(federation: Federation, *, tls: bool) -> Iterator[int]:
    """One connection on loopback, with the server's certificate."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                if not tls:
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(federation.certificate, federation.key)
                try:
                    context.wrap_socket(link, server_side=True).close()
                except ssl.SSLError:
                    return  # the other side refuses

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_device_says_why_it_refuses_a_server(federation: Federation, tmp_path: Path) -> None:
    def check(host: str, port: int) -> None:
        bundle = federation.bundle("device-0")
        settings = json.loads((bundle / "device.json").read_text())
        (bundle / "device.json").write_text(json.dumps({**settings, "server": f"{host}:{port}"}))
        check_server(read_bundle(bundle))

    for host in ("127.0.0.1", "localhost"):
        with served(federation, tls=True) as port:
            check(host, port)
    with served(federation, tls=False) as port, refused(RunError, "no-tls"):
        check("127.0.0.1", port)
    with refused(RunError, "unreachable"):
        check("127.0.0.1", port)
    stranger = create(tmp_path / "other", ["127.0.0.1"], 1)
    shutil.copy(stranger.authority, federation.bundle("device-0") / "ca.crt")
    with served(federation, tls=True) as port, refused(RunError, "certificate"):
        check("127.0.0.1", port)


def test_a_damaged_file_of_a_bundle_is_named(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), "".join(capsys.readouterr())

    bundle = federation.bundle("device-0")
    (bundle / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nx\n")
    line = f"{bundle / 'ca.crt'}: is no certificate; copy the bundle again\n"
    assert run("device", str(bundle), "--run") == (2, f"fedmrn-deploy: {line}")
    status, found = run("doctor", str(bundle))
    assert status == 1
    assert f"FAULT  {line}" in found
    assert "TLS" not in found
    (bundle / "device.key").write_text("x")
    status, errors = run("device", str(bundle), "--run")
    assert status == 2
    assert errors.startswith(f"fedmrn-deploy: {bundle / 'device.key'}: is no private key; copy the bundle again, or ")
    status, found = run("doctor", str(bundle))
    assert f"FAULT  {errors.removeprefix('fedmrn-deploy: ')}" in found
    assert "roster.json" not in found


def test_why_a_supernode_ended() -> None:
    flower = ["Exit Code: 305", "Failed to initialize the connection.", "[code: 2004] Failed to activate SuperNode."]
    assert explain([*flower, "its key was revoked"]) == "the server does not let it in: its key was revoked"
    assert explain(["Exit Code: 1", "No port is free."]) == "No port is free."
    assert explain(["Terminated"]) is None
    refused = "the SuperNode has stopped: HTTPStatusError: Client error '401 Unauthorized' for url"
    assert "its key was revoked" in str(explain([refused]))


def test_the_superlink_serves_loopback_and_registered_devices_only(federation: Federation) -> None:
    words = " ".join(superlink_words(federation))
    assert "--host 127.0.0.1 --port 49391" in words
    assert "--enable-supernode-auth" in words
    assert "--insecure" not in words


def test_services_restart_without_limit_and_rotate_their_logs(federation: Federation) -> None:
    for files in (units.write_server_services(federation), units.write_device_services(federation, "device-0")):
        unit, compose, _, pinned = (file.read_text() for file in files)
        assert "Restart=on-failure" in unit
        assert "StartLimitIntervalSec=0" in unit
        (service,) = yaml.safe_load(compose)["services"].values()
        assert service["restart"] == "on-failure"
        assert service["logging"]["options"]["max-file"] == "5"
        assert "PRIVATE" not in unit + compose
        assert f"flwr=={version('flwr')}\n" in pinned


def test_services_name_any_folder(tmp_path: Path) -> None:
    federation = create(tmp_path / 'a "folder" of $HOME, 100% \\mine', ["127.0.0.1", "::1", "fl.example.org"], 1)
    unit, compose, *_ = (file.read_text() for file in units.write_server_services(federation))
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert lines["WorkingDirectory"] == str(federation.path).replace("%", "%%")
    start = lines["ExecStart"].replace("%%", "%").replace("$$", "$")
    assert shlex.split(start)[1:] == ["server", str(federation.path), "--run"]
    assert (lines["LimitNOFILE"], lines["Restart"]) == ("65536", "on-failure")
    (service,) = yaml.safe_load(compose)["services"].values()
    assert service["volumes"] == [f"{federation.path}:{federation.path}".replace("$", "$$")]
    assert service["command"][1] == str(federation.path).replace("$", "$$")
    assert service["ulimits"] == {"nofile": 65536}


def test_commands_are_printed_as_a_shell_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "one \u00fc"
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit):
            cli.main()
        return "".join(capsys.readouterr())

    def named(text: str, start: str) -> str:
        """Return the word that a shell finds after the start of a command."""
        return shlex.split(text[text.index(start) + len(start) :].split(";")[0].split("`")[0].split("\n")[0])[0]

    made = run("init", "--host", "127.0.0.1", "--devices", "1", str(place))
    assert named(made, "fedmrn-deploy server ") == named(made, "register --all --folder ") == str(place)
    assert named(run("status", str(place)), "fedmrn-deploy server ") == str(place)
    examined = run("doctor", str(place))
    assert named(examined, "fedmrn-deploy server ") == str(place)
    key = place / "devices" / "device-0" / "device.key"
    key.chmod(0o644)
    assert named(run("doctor", str(place)), "chmod go= ") == str(key)
    with pytest.raises(ConfigError) as refused:
        read_bundle(key.parent)
    assert named(str(refused.value), "chmod 600 ") == str(key)
    run("backup", "--to", str(tmp_path / "b.tar.gz"), str(place))
    again = tmp_path / "two \u00fc"
    assert named(run("restore", str(tmp_path / "b.tar.gz"), str(again)), "fedmrn-deploy server ") == str(again)


def test_server_keeps_the_limit_of_a_message(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmrn-deploy", "server", str(federation.path), "--max-message", "512"])
    with pytest.raises(SystemExit):
        cli.main()
    assert load(federation.path).max_message == 512


def test_connections_are_added_to_the_existing_ones(tmp_path: Path, federation: Federation) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('# mine\n[superlink.mine]\naddress = "a:1"\ninsecure = true\n')
    add_connection("fedmrn", "127.0.0.1:1", federation.authority, home)
    add_connection("fedmrn", "127.0.0.1:1", federation.authority, home)
    assert (home / "config.toml").read_text().startswith("# mine\n")
    assert read_connection("fedmrn", home).authority == federation.authority
    assert read_connection("mine", home).authority is None
    with refused(ConfigError, "exists"):
        add_connection("fedmrn", "127.0.0.1:2", federation.authority, home)
    with refused(ConfigError, "unknown"):
        read_connection("lab", home)


def test_command_refuses_wrong_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), *capsys.readouterr()

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    status, output, errors = run("init", "--host", "127.0.0.1", "--devices", "1", str(tmp_path / "fed"))
    assert status == 0
    assert "PRIVATE" not in output + errors
    new = str(tmp_path / "new")
    for words, names in (
        (["init", "--host", "x", "--devices", "1", str(tmp_path / "fed")], str(tmp_path / "fed")),
        (["init", "--host", "x", "--devices", "0", new], "--devices=0"),
        (["init", "--host", " ", "--devices", "1", new], "--host"),
        (["init", "--host", "a b;c", "--devices", "1", new], "--host='a b;c'"),
        (["init", "--host", "a.org:9091", "--devices", "1", new], "--host=a.org:9091: is no IPv6 address; leave the"),
        (["init", "--host", "192.0.2.1:9091", "--devices", "1", new], "leave the port out; --port sets it"),
        (["init", "--host", "x", "--devices", "1", "--port", "9092", new], "--control-port=9092: is the port of the"),
        (["init", "--host", "a\nExecStartPre=/bin/sh", "--devices", "1", new], "--host='a\\nExecStartPre"),
        (["init", "--host", "x", "--devices", "1", f"{new}\nUser=root"], "new\\nUser=root"),
        (["init", "--host", "x", "--devices", "1", "--name", "a b", new], "--name=a b"),
        (["init", "--host", "x", "--devices", "1", new], "fedmrn: is another connection in"),
        (["status", str(tmp_path / "none")], str(tmp_path / "none")),
        (["device", "--run", str(tmp_path)], str(tmp_path)),
        (["register", "--folder", str(tmp_path / "fed")], "devices"),
        (["register", "0", "--samples", "0", "--folder", str(tmp_path / "fed")], "--samples=0"),
    ):
        status, output, errors = run(*words)
        assert (status, output) == (2, "")
        (line,) = errors.splitlines()
        assert names in line
        assert not Path(new).exists()
    status, _, errors = run("status", str(tmp_path / "fed"))
    assert status == 1
    assert "fedmrn-deploy server" in errors
    federation = load(tmp_path / "fed")
    federation.devices["device-0"].node_id = 5
    federation.save()
    assert run("register", "0", "--samples", "50", "--folder", str(tmp_path / "fed"))[0] == 0
    records = DeviceRecords(tmp_path / "fed" / "federation.json")
    assert records.find(5) == DeviceRecord("device-0", 0, 1, 50)
    assert records.samples(3) == {0: 50, 1: 50, 2: 50}


def test_on_is_taken_out_of_the_command_line() -> None:
    assert take_on(["a=1", "--on", "lab", "-m"]) == (["a=1", "-m"], "lab")
    assert take_on(["--on=lab", "a=1"]) == (["a=1"], "lab")
    assert take_on(["a=1"]) == (["a=1"], None)
    for words in (["--on"], ["--on", "a=1"], ["--on", "--multirun"]):
        with refused(ConfigError, "missing"):
            take_on(words)


def test_command_starts_without_pytorch() -> None:
    code = "import sys, fedmrn_app.deploy.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("code", "says"), [(9, "set the clock"), (10, "fedmrn-deploy server --renew"), (20, "ca.crt")])
def test_a_refused_certificate_names_the_clock_or_what_mends_it(code: int, says: str) -> None:
    error = ssl.SSLCertVerificationError("refused")
    error.verify_code, error.verify_message = code, "unable to get local issuer certificate"
    reason = refused_certificate(error, Path("ca.crt"))
    assert says in reason
    assert ("this device's clock says 20" in reason) == (code != 20)


def test_a_server_whose_certificate_has_ended_says_how_it_is_renewed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["fedmrn-deploy", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        output, errors = capsys.readouterr()
        return int(left.value.code or 0), output.splitlines(), errors.splitlines()

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_SERVER_DAYS", -0.02)
        renew_server(federation)
    line = f"{federation.certificate}: the server's certificate expired on 20"
    for words in (("server", str(federation.path), "--run"), ("register", "--all", "--folder", str(federation.path))):
        status, _, (error,) = run(*words)
        assert status == 1
        assert error.startswith(f"fedmrn-deploy: {line}")
        assert error.endswith(f"; fedmrn-deploy server --renew {federation.path}")
    status, found, _ = run("doctor", str(federation.path))
    assert status == 1
    assert any(line in each for each in found)
    assert not any("does not answer" in each for each in found)
    assert run("server", str(federation.path), "--renew")[0] == 0
    with refused(RunError, "unreachable"):
        operator(federation)


def test_a_second_server_says_that_its_port_is_taken(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", federation.control_port)):
        processes: list[subprocess.Popen[bytes]] = []
        with refused(RunError, "taken"):
            start_server(federation, "127.0.0.1", processes)
        assert not processes
