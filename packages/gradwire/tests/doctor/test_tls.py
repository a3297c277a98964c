from __future__ import annotations

import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gradwire.doctor.software import check_tls

# Self-signed, and of another key than those of the tests.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBhjCCAS2gAwIBAgIUUzm5GxuMVAuARxBX6cXgybf9Pg8wCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNZ3JhZHdpcmUtdGVzdDAgFw0yNjExMjIwMTQ2MDNaGA8yMDY2
MTExMjAxNDYwM1owGDEWMBQGA1UEAwwNZ3JhZHdpcmUtdGVzdDBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABHOYtPBEX2kSxkdknK8xguthjeSYCD8AKDGGopASiEV8
JWEdwYWjdlnkzE5bsx4DG3LJrICAxz6iJnJIG/kd9lWjUzBRMB0GA1UdDgQWBBTz
E/uIcZprB5WPZkZr32/9pRHq/zAfBgNVHSMEGDAWgBTzE/uIcZprB5WPZkZr32/9
pRHq/zAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIDw8KMuvABYL
kVI0YheWRVo2c3gPKHjpEGMD4PWRdKh6AiADgIQJjlXo2eELilnq3jNIi9kReGcn
5HKOa4hPVGzMaQ==
-----END CERTIFICATE-----
"""
AUTHORITY = """[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = policy
[policy]
commonName = supplied
"""
NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes keys with the program openssl")


@pytest.mark.parametrize("environment", [{}, {"GLOO_DEVICE_TRANSPORT": "TCP"}])
def test_without_the_variables_it_is_off(environment: dict[str, str]) -> None:
    finding = check_tls(environment)
    assert finding.result == "ok"
    assert finding.detail.startswith("off (GRADWIRE_TLS_KEY is not set): gradients are sent unencrypted")


def test_gloos_transport_alone_encrypts_no_frames() -> None:
    finding = check_tls({"GLOO_DEVICE_TRANSPORT": "TCP_TLS"})
    assert finding.result == "FAIL"
    assert "set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA" in finding.detail


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables that name a fresh certificate, which is its own authority, and its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test -days 365"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *files], check=True, capture_output=True, timeout=30)
    return {
        "GLOO_DEVICE_TRANSPORT": "TCP_TLS",
        "GRADWIRE_TLS_KEY": str(key),
        "GRADWIRE_TLS_CERT": str(certificate),
        "GRADWIRE_TLS_CA": str(certificate),
    }


def end_of(certificate: str) -> datetime:
    """Return when it expires, as openssl says."""
    words = ["openssl", "x509", "-noout", "-enddate", "-in", certificate]
    told = subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout
    return datetime.strptime(told.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=timezone.utc)


@openssl
@pytest.mark.parametrize(
    ("days_left", "result", "words"),
    [(300, "ok", "on; the files match; valid until {}"), (5, "warn", "expires on {}; renew the certificate")],
)
def test_a_certificate_that_soon_expires_is_a_warning(
    environment: dict[str, str], days_left: int, result: str, words: str
) -> None:
    ends = end_of(environment["GRADWIRE_TLS_CERT"])
    finding = check_tls(environment, ends - timedelta(days=days_left))
    assert finding.result == result
    assert finding.detail.endswith(words.format(f"{ends:%Y-%m-%d}"))


@openssl
@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [
        ("20240101000000Z", "20250101000000Z", "certificate has expired"),
        ("20900101000000Z", "20910101000000Z", "certificate is not yet valid"),
    ],
)
def test_a_certificate_out_of_its_time_fails(
    environment: dict[str, str], tmp_path: Path, begins: str, ends: str, words: str
) -> None:
    key, certificate = environment["GRADWIRE_TLS_KEY"], environment["GRADWIRE_TLS_CERT"]
    (tmp_path / "authority.conf").write_text(AUTHORITY.format(folder=tmp_path))
    (tmp_path / "index").touch()
    commands = (
        f"openssl req -new -key {key} -subj /CN=test -out {tmp_path}/request",
        f"openssl ca -batch -selfsign -keyfile {key} -in {tmp_path}/request -out {certificate} -rand_serial "
        f"-notext -startdate {begins} -enddate {ends} -config {tmp_path}/authority.conf",
    )
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    finding = check_tls(environment)
    assert finding.result == "FAIL"
    assert words in finding.detail


@openssl
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("KEY", None, "are set, but GRADWIRE_TLS_KEY is not; set all three"),
        ("CA", None, "are set, but GRADWIRE_TLS_CA is not; set all three"),
        ("CERT", "", "expected a matching pair in PEM"),
        ("CERT", CERTIFICATE, "pair in PEM without a password, got KEY_VALUES_MISMATCH"),
        ("CA", "no certificate", "expected a certificate in PEM"),
        ("CA", CERTIFICATE, "ranks that trust the authority"),
    ],
)
def test_files_that_do_not_fit_fail(
    environment: dict[str, str], tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    variable = f"GRADWIRE_TLS_{name}"
    if content is None:
        del environment[variable]
    else:
        environment[variable] = str(tmp_path / "other.pem")
        (tmp_path / "other.pem").write_text(content)
    finding = check_tls(environment, NOW)
    assert finding.result == "FAIL"
    assert words in finding.detail


@openssl
@pytest.mark.parametrize("name", ["KEY", "CERT", "CA"])
def test_a_file_that_is_not_there_is_named(environment: dict[str, str], name: str) -> None:
    environment[f"GRADWIRE_TLS_{name}"] = "/nowhere/x"
    finding = check_tls(environment, NOW)
    assert finding.result == "FAIL"
    assert f"GRADWIRE_TLS_{name}: expected a file, got '/nowhere/x'" in finding.detail
