from __future__ import annotations

from gradwire.tables import Column
from gradwire_lab.columns import error_of, ms_of, table_of, text_of


def test_each_column_has_its_text_of_each_item() -> None:
    columns = (
        (Column.of_text("plan"), text_of("plan")),
        (Column("step", "ms"), ms_of("step_s")),
        (Column("ratio"), lambda row: f"{row['ratio']:.1f}x"),
    )
    made = table_of(columns, [{"plan": "fp8", "step_s": 0.25, "ratio": 3.96}])
    assert [column.name for column in made.columns] == ["plan", "step", "ratio"]
    assert made.rows == [("fp8", "250", "4.0x")]
    assert table_of(columns, []).rows == []


def test_an_error_is_a_share_of_the_measured_seconds() -> None:
    assert error_of({"predicted_s": 1.5, "measured_s": 2.0}) == -0.25
