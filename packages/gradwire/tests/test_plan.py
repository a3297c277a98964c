from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import codecs, collectives
from gradwire.codecs import DEFAULT_CODEC, Identity, parse
from gradwire.errors import SpecError
from gradwire.plan import MAX_BUCKET_NBYTES, MAX_SEGMENT_NBYTES, SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import MAX_FRAME_NBYTES

SPECS = sorted(spec for row in codecs.TABLE for spec in row.codec.EXAMPLES)

PLANS = (
    st.builds(
        Plan,
        codec=st.sampled_from(SPECS).map(parse),
        algorithm=st.sampled_from(sorted(collectives.TABLE)),
        segment_nbytes=st.integers(1, 64).map(lambda units: units * SEGMENT_UNIT_NBYTES),
        pipeline=st.integers(1, 8),
        bucket_nbytes=st.none() | st.integers(1, 1 << 40).map(lambda floats: 4 * floats),
        residual=st.sampled_from([None, False, True]),
    )
    | st.builds(
        Plan,
        offload=st.sampled_from(["inceptionn:2^-10", "inceptionn:2^-4,bounded"]),
        scale=st.sampled_from([None, "auto"]),
    )
    | st.builds(
        Plan,
        codecs=st.lists(
            st.builds(
                lambda match, spec: {"match": match, "codec": spec}, st.just("b$"), st.sampled_from(SPECS)
            )
        ),
    )
)


@given(PLANS)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)


def test_json_is_readable() -> None:
    plan = Plan(parse("errbound:2^-10"), "star", 1 << 18, pipeline=2)
    assert json.loads(plan.to_json()) == {
        "codec": "errbound:2^-10",
        "algorithm": "star",
        "segment_nbytes": 262144,
        "pipeline": 2,
        "bucket_nbytes": None,
        "residual": None,
        "exchange": "all_reduce",
        "offload": None,
        "scale": None,
        "encode_on": "host",
        "codecs": [],
    }
    assert Plan.from_json(replace(plan, lanes=3).to_json()) == replace(plan, lanes=3)
    assert json.loads(replace(plan, bucket_nbytes=25_000_000).to_json())["bucket_nbytes"] == 25_000_000


def test_json_of_before_there_were_buckets_is_read() -> None:
    old = '{"codec": "errbound:2^-10", "algorithm": "star", "segment_nbytes": 262144, "pipeline": 2}'
    assert Plan.from_json(old) == Plan(parse("errbound:2^-10"), "star", 1 << 18, pipeline=2)


def test_json_has_every_field_and_only_these() -> None:
    assert list(json.loads(Plan(lanes=2).to_json())) == [each.name for each in fields(Plan)]


def test_json_of_before_there_were_residuals_leaves_them_to_the_codec() -> None:
    old = '{"codec": "topk:0.01", "algorithm": "ring", "segment_nbytes": 16384, "pipeline": 1, '
    plan = Plan.from_json(old + '"bucket_nbytes": null}')
    assert plan == Plan(parse("topk:0.01"), "ring", 16384)
    assert plan.keeps_residual


def test_json_of_before_there_were_sharded_exchanges_means_an_all_reduce() -> None:
    plan = Plan.from_json('{"codec": "quantize:8", "pipeline": 2, "residual": true}')
    assert plan == Plan(parse("quantize:8"), pipeline=2, residual=True, exchange="all_reduce")
    assert not plan.is_sharded


def test_a_sharded_plan_goes_through_files_and_specs(tmp_path: Path) -> None:
    plan = Plan(parse("quantize:8"), residual=True, exchange="sharded")
    plan.save(tmp_path / "plan.json")
    assert Plan.of(tmp_path / "plan.json") == plan
    assert Plan.of(plan, exchange="all_reduce") is plan, "a plan has its own"
    assert Plan.of("fp8", exchange="sharded") == replace(Plan.of("fp8"), exchange="sharded")
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("spec", SPECS)
def test_the_codec_says_whether_residuals_are_kept_unless_the_plan_does(spec: str) -> None:
    wanted = spec.startswith(("topk", "quantize:4"))
    assert Plan(parse(spec)).keeps_residual is wanted
    for residual in (False, True):
        assert Plan(parse(spec), residual=residual).keeps_residual is residual


def test_json_of_before_there_were_nics_and_scales_has_neither() -> None:
    plan = Plan.from_json('{"codec": "errbound:2^-10", "residual": null, "exchange": "all_reduce"}')
    assert plan == Plan(parse("errbound:2^-10"), offload=None, scale=None)
    assert plan.encoding is plan.codec
    assert plan.tos == 0


@pytest.mark.parametrize("scale", [None, "auto"])
def test_what_nics_may_do_goes_through_json_and_is_what_ranks_project_to(scale: str | None) -> None:
    plan = Plan(algorithm="tree", offload="inceptionn:2^-10", scale=scale)
    assert plan == Plan(algorithm="tree", offload=parse("inceptionn:2^-10"), scale=scale)
    assert json.loads(plan.to_json())["offload"] == "inceptionn:2^-10"
    assert Plan.from_json(plan.to_json()) == plan
    assert str(plan.encoding) == f"{'' if scale is None else 'scaled:'}projected:inceptionn:2^-10"
    assert plan.tos == 0x28
    assert replace(plan, pipeline=2).encoding == plan.encoding
    assert not plan.keeps_residual


def test_a_scale_goes_through_json_and_files(tmp_path: Path) -> None:
    plan = Plan(parse("errbound:2^-10"), scale="auto")
    plan.save(tmp_path / "plan.json")
    assert Plan.of(tmp_path / "plan.json") == plan
    assert str(plan.encoding) == "scaled:errbound:2^-10"
    assert Plan.of("errbound:2^-10", scale="auto").scale == "auto"


def test_what_json_leaves_out_keeps_its_default() -> None:
    assert Plan.from_json("{}") == Plan()
    assert Plan.from_json('{"codec": "fp16"}') == replace(Plan(), codec=parse("fp16"))


def test_the_default_is_an_uncompressed_ring() -> None:
    assert Plan().codec == Identity()
    assert Plan().algorithm == "ring"
    assert Plan().pipeline == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"codec": torch.zeros(2, 2)}, r"got tensor\(\[\[0., 0.], \[0., 0.]]\); parse a spec"),
        ({"codec": "fp16"}, r"expected a Codec for codec, got 'fp16'; parse a spec with gradwire"),
        ({"algorithm": "gossip"}, r"unknown algorithm 'gossip'"),
        ({"algorithm": ["ring"]}, r"unknown algorithm \['ring'\]"),
        ({"pipeline": 0}, r"expected a whole number from 1 to 1024 for pipeline, got 0"),
        ({"pipeline": True}, r"expected a whole number from 1 to 1024 for pipeline, got True"),
        ({"pipeline": 1.5}, r"expected a whole number from .* for pipeline"),
        ({"pipeline": 1025}, r"expected a whole number from 1 to 1024 for pipeline, got 1025;"),
        ({"pipeline": 10**12}, r"expected a whole number from 1 to 1024 for pipeline, got 1000000000000;"),
        ({"pipeline": 10**5000}, r"got a value of the type int;"),
        (
            {"segment_nbytes": 0},
            r"expected a whole number from 16384 to 17179852800 for segment_nbytes, got 0",
        ),
        ({"segment_nbytes": 16385}, r"a multiple of 16384 from .* got 16385; for example, pass 16384$"),
        ({"segment_nbytes": 10**30}, r"from 16384 to 17179852800 for segment_nbytes, got 10{30};"),
        (
            {"segment_nbytes": 1 << 64},
            r"from 16384 to 17179852800 for segment_nbytes, got 18446744073709551616;",
        ),
        ({"segment_nbytes": 1 << 34, "codec": parse("topk:1e-30")}, r"got 17179869184;"),
        (
            {"segment_nbytes": MAX_SEGMENT_NBYTES},
            r"at most 33554432 bytes, got up to 17179852832 for a segment",
        ),
        (
            {"bucket_nbytes": 1 << 64},
            r"from 4 to 281474976710656 for bucket_nbytes, got 18446744073709551616;",
        ),
        ({"bucket_nbytes": 0}, r"expected a whole number from 4 to 281474976710656 for bucket_nbytes, got 0"),
        ({"bucket_nbytes": 6}, r"expected a multiple of 4 from .* got 6; for example, pass 4$"),
        (
            {"bucket_nbytes": "25MB"},
            r"expected a whole number from 4 to 281474976710656 for bucket_nbytes, got '25MB'",
        ),
        ({"residual": 1}, r"expected True, False or None for residual, got 1;"),
        ({"residual": "no"}, r"expected True, False or None for residual, got 'no';"),
        ({"exchange": "scattered"}, r"expected one of all_reduce, sharded for exchange, got 'scattered';"),
        ({"exchange": ["sharded"]}, r"expected one of all_reduce, sharded for exchange, got \['sharded'\];"),
        ({"exchange": None}, r"expected one of all_reduce, sharded for exchange, got None;"),
        ({"offload": "quantize:8"}, r"expected a codec that NICs can apply, got quantize:8; use"),
        ({"offload": "truncate:24"}, r"NICs can apply, got truncate:24; use inceptionn, or truncate"),
        ({"offload": 5}, r"offload: expected a codec, its spec or None, got 5; pass a spec such as 'fp8'$"),
        ({"offload": "bitpack:9"}, r"bitpack: expected 1 to 4 bytes"),
        (
            {"offload": "bitpack:2", "codec": parse("fp8")},
            r"expected no codec with offload, because NICs encode, got fp8; omit codec or",
        ),
        ({"scale": "on"}, r"expected None or 'auto' for scale, got 'on';"),
        ({"scale": 2}, r"expected None or 'auto' for scale, got 2;"),
        ({"scale": "auto"}, r"scale: expected a codec with an absolute bound .*, got identity; omit scale"),
        ({"scale": "auto", "offload": "truncate:16"}, r"got truncate:16; omit scale,"),
        ({"scale": "auto", "codec": parse("errbound:2^0")}, r"got errbound:2\^0; omit scale"),
        ({"scale": "auto", "codec": parse("errbound:rel=0.1")}, r"got errbound:rel=0.1; omit scale"),
        ({"lanes": 0}, r"expected a whole number from 1 to 16 for lanes, got 0;"),
        ({"lanes": 17}, r"expected a whole number from 1 to 16 for lanes, got 17;"),
        ({"lanes": 2, "algorithm": "backend"}, r"expected lanes=1 for the algorithm backend, got lanes=2"),
        ({"lanes": 2, "exchange": "sharded"}, r"expected lanes=1 for a sharded exchange, got lanes=2"),
        ({"encode_on": "gpu"}, r"expected one of host, device for encode_on, got 'gpu';"),
        (
            {"encode_on": "device", "codec": parse("ecsq:1")},
            r"ecsq has no kernels for GPUs; use encode_on=",
        ),
        (
            {"encode_on": "device", "exchange": "sharded"},
            r"not possible: a sharded exchange runs on the host; use",
        ),
        (
            {"encode_on": "device", "algorithm": "backend"},
            r"the transport's native all-reduce encodes nothing;",
        ),
        ({"exchange": "sharded", "algorithm": "star"}, r"got algorithm='star', .* omit these settings$"),
        (
            {"exchange": "sharded", "bucket_nbytes": 4},
            r"expected algorithm='ring', one bucket, and a pipeline",
        ),
        ({"exchange": "sharded", "pipeline": 2}, r"bucket_nbytes=None, and pipeline=2; omit these settings$"),
        (
            {"bucket_nbytes": 4.0},
            r"expected a whole number from 4 to 281474976710656 for bucket_nbytes, got 4\.0",
        ),
        (
            {"segment_nbytes": 1 << 30},
            rf"at most {MAX_FRAME_NBYTES} bytes, .* choose a smaller segment_nbytes",
        ),
    ],
)
def test_a_value_that_no_exchange_can_use_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        replace(Plan(), **changes)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1


def test_the_largest_values_are_taken() -> None:
    largest = Plan(parse("topk:1e-30"), "ring", MAX_SEGMENT_NBYTES, 1024, MAX_BUCKET_NBYTES)
    assert Plan.from_json(largest.to_json()) == largest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", r"expected a JSON object for a plan, got invalid JSON"),
        ("[]", r"expected a JSON object for a plan, got a list"),
        ("[" * 100_000, r"expected a JSON object for a plan, got invalid JSON"),
        (
            '{"codex": "fp16"}',
            r"expected the fields codec, algorithm, segment_nbytes, pipeline, bucket_nbytes, residual, "
            r"exchange, offload, scale, encode_on, lanes, codecs for a plan, got the unknown field 'codex';",
        ),
        ('{"codec": "fp17"}', r"unknown codec 'fp17'"),
        ('{"codec": 17}', r"expected a spec such as 'quantize:8', got 17"),
        ('{"algorithm": null}', r"unknown algorithm None"),
        (
            '{"bucket_nbytes": false}',
            r"expected a whole number .* for bucket_nbytes, got False",
        ),
        ('{"segment_nbytes": 1e30}', r"expected a whole number .* for segment_nbytes, got 1e\+30;"),
        (f'{{"segment_nbytes": {10**30}}}', r"from 16384 to 17179852800 for segment_nbytes, got 10{30};"),
        ('{"segment_nbytes": "1MiB"}', r"expected a whole number from .* for segment_nbytes"),
    ],
)
def test_json_that_is_no_plan_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Plan.from_json(text)


@given(plan=PLANS)
def test_a_plan_survives_a_file(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("plans", numbered=True) / "plan.json"
    plan.save(path)
    assert Plan.load(path) == Plan.load(str(path)) == plan


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"the plan \S*plan\.json cannot be read: No such file or directory; pass a file"),
        (b"\xff\xfe", r"^expected a plan in \S*plan\.json, got a file that isn.t UTF-8;"),
        (b"codec: fp16", r"^the plan \S*plan\.json is not valid: .* got invalid JSON: "),
        (
            b'{"codex": "fp16"}',
            r"^the plan \S*plan\.json is not valid: expected the fields .* got the unk",
        ),
        (
            b'{"pipeline": "2"}',
            r"^the plan \S*plan\.json .*: expected a whole number .* for pipeline, got '2';",
        ),
    ],
)
def test_a_file_that_holds_no_plan_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=reason) as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)


def test_a_place_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the plan cannot be written to \S+: it is a folder; pass a file$"):
        Plan().save(tmp_path)
    with pytest.raises(SpecError, match=r"the plan \S+ cannot be read: Is a directory; pass a file"):
        Plan.load(tmp_path)
    with pytest.raises(SpecError, match=r"the plan .* cannot be read: .*null"):
        Plan.load("a\0b")


def test_a_plan_replaces_a_plan_but_nothing_else_unasked(tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", Plan(algorithm="star")
    Plan().save(path)
    plan.save(path)
    assert Plan.load(path) == plan
    path.write_text('{"schema": "gradwire.train/1"}')
    with pytest.raises(
        SpecError, match=r"the plan cannot be written to \S+: the file has other content; pass another"
    ):
        plan.save(path)
    assert path.read_text() == '{"schema": "gradwire.train/1"}'
    plan.save(path, overwrite=True)
    assert Plan.load(path) == plan
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_that_has_changed_in_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan.of("quantize:8").save(path)
    assert json.loads(path.read_text()).keys() - json.loads(Plan().to_json()).keys() == {"crc32c"}
    path.write_text(path.read_text().replace("quantize:8", "quantize:4"))
    with pytest.raises(
        SpecError,
        match=r"the plan .*plan\.json is not valid:.* its checksum differs; save the plan again, or",
    ):
        Plan.load(path)
    changed = json.loads(path.read_text())
    del changed["crc32c"]
    path.write_text(json.dumps(changed))
    assert Plan.load(path) == Plan.of("quantize:4")


def test_a_plan_is_saved_behind_a_link_and_over_no_device(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tmp_path / "plan.json")
    Plan().save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert Plan.load(tmp_path / "plan.json") == Plan()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="it is not a regular file"):
        Plan().save(tmp_path / "pipe", overwrite=True)


def test_of_reads_all_that_a_user_may_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(parse("quantize:4"), "star", residual=True)
    plan.save(tmp_path / "mine.json")
    plan.save(tmp_path / "mine")
    plan.save(tmp_path / "fp8")
    monkeypatch.chdir(tmp_path)
    for meant in (plan, tmp_path / "mine", str(tmp_path / "mine"), "mine.json", "mine"):
        assert Plan.of(meant, pipeline=2) == plan, "it says its pipeline itself"
    assert Plan.of(DEFAULT_CODEC) == Plan.of(None) == Plan(parse(DEFAULT_CODEC))
    assert Plan.of("fp8") == Plan(parse("fp8")), "a codec before a file"
    assert Plan.of("quantize:4", pipeline=2) == Plan.of(parse("quantize:4"), pipeline=2)


def test_what_is_not_encoded_travels_in_small_segments_unless_somebody_says_otherwise() -> None:
    assert Plan.of("identity").segment_nbytes == 1 << 18
    assert Plan.of("identity", segment_nbytes=1 << 20).segment_nbytes == 1 << 20


@pytest.mark.parametrize(
    ("meant", "reason"),
    [
        (17, "expected a Plan, a codec, its spec or the path of a plan's file for gradients, got 17"),
        ("nothing", "unknown codec 'nothing'"),
        ("nothing.json", r"the plan nothing\.json cannot be read: No such file"),
    ],
)
def test_of_names_what_it_cannot_read(meant: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Plan.of(meant, "gradients")


def test_who_encodes_on_the_host_refuses_a_plan_that_says_else() -> None:
    plan = Plan(parse("quantize:4"), residual=False)
    assert plan.on_host("attach_fsdp") is plan
    with pytest.raises(
        SpecError,
        match=r"^attach_fsdp: expected a plan with encode_on='host', got 'device'; change encode_on",
    ):
        replace(plan, encode_on="device").on_host("attach_fsdp")
