from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gradwire.doctor.checks.certificate import NotACertificateError, read_validity
from gradwire.doctor.checks.tls import check_tls

# Of a curve, self-signed; the first time of its validity is a UTCTime, the second a GeneralizedTime.
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
NOW = datetime(2030, 1, 1, tzinfo=UTC)
openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes keys with the program openssl")


def test_validity_is_what_openssl_says() -> None:
    begins, ends = read_validity(f"Subject: somebody\n{CERTIFICATE}")
    assert begins == datetime(2026, 11, 22, 1, 46, 3, tzinfo=UTC)  # openssl x509 -noout -startdate
    assert ends == datetime(2066, 11, 12, 1, 46, 3, tzinfo=UTC)  # -enddate


@pytest.mark.parametrize(
    "text", ["", "no certificate", CERTIFICATE[:200], CERTIFICATE.replace("MIIB", "MAAA")]
)
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(NotACertificateError):
        read_validity(text)


@pytest.mark.parametrize("environment", [{}, {"GLOO_DEVICE_TRANSPORT": "TCP"}])
def test_without_the_variables_it_is_off(environment: dict[str, str]) -> None:
    finding = check_tls(environment)
    assert finding.result == "ok"
    assert finding.detail.startswith("off (GRADWIRE_TLS_KEY is not set): gradients travel unencrypted")


def test_gloos_transport_alone_encrypts_no_frames() -> None:
    finding = check_tls({"GLOO_DEVICE_TRANSPORT": "TCP_TLS"})
    assert finding.result == "FAIL"
    assert "set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA to encrypt those" in finding.detail


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


@openssl
@pytest.mark.parametrize(
    ("days", "result", "words"),
    [
        (30, "ok", "on; the files fit; valid until"),
        (360, "warn", "expires on"),
        (400, "FAIL", "has expired on"),
        (-2, "FAIL", "is the clock right?"),
    ],
)
def test_a_certificate_is_judged_by_the_clock(
    environment: dict[str, str], days: int, result: str, words: str
) -> None:
    begins, _ = read_validity(Path(environment["GRADWIRE_TLS_CERT"]).read_text())
    finding = check_tls(environment, datetime.fromtimestamp(begins.timestamp() + 86400 * days, UTC))
    assert finding.result == result
    assert words in finding.detail


@openssl
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("KEY", None, "are set, but GRADWIRE_TLS_KEY is not; set all three"),
        ("CA", None, "are set, but GRADWIRE_TLS_CA is not; set all three"),
        ("CERT", "", "no pair in PEM"),
        ("CERT", CERTIFICATE, "no pair in PEM without a password: KEY_VALUES_MISMATCH"),
        ("CA", "no certificate", "holds no certificate in PEM"),
        ("CA", CERTIFICATE, "would be refused by ranks with the authority"),
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
    assert f"GRADWIRE_TLS_{name} names '/nowhere/x', which is no file here" in finding.detail
