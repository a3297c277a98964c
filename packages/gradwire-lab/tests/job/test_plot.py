import io

import numpy as np
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gradwire.page.picture import CURVES
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.record import RunResult
from gradwire_lab.job.report import PARTS, attach_first, draw, draw_curves


def pixels_of(picture: np.ndarray, colour: str) -> int:
    rgb = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    return int((np.abs(np.round(picture[..., :3] * 255) - rgb) <= 2).all(axis=-1).sum())


def test_the_picture_shows_every_run_and_every_part(
    options: JobOptions, results: tuple[RunResult, ...]
) -> None:
    png = draw(options, results)
    assert png.startswith(b"\x89PNG")
    picture = image.imread(io.BytesIO(png))
    for colour in [*CURVES[: len(results)], *(colour for _, colour in PARTS)]:
        assert pixels_of(picture, colour) > 100, colour


def test_bars_are_as_long_as_the_times(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    exposed = dict(PARTS)["exposed communication"]
    both = pixels_of(image.imread(io.BytesIO(draw(options, results[:2]))), exposed)
    slow = pixels_of(image.imread(io.BytesIO(draw(options, (results[0], results[0])))), exposed)
    assert 0.6 < both / slow < 0.65  # (400 + 100) / (400 + 400), and the key


def test_losses_are_drawn_where_ddp_is_compared(options: JobOptions, on_ddp: tuple[RunResult, ...]) -> None:
    picture = image.imread(io.BytesIO(draw(options, on_ddp)))
    for colour in CURVES[: len(on_ddp)]:
        assert pixels_of(picture, colour) > 100, colour
    assert draw(options, on_ddp[:1]).startswith(b"\x89PNG")


def test_one_run_with_one_epoch_is_drawn(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    assert draw(options, results[:1]).startswith(b"\x89PNG")


def test_attach_is_first(on_ddp: tuple[RunResult, ...], results: tuple[RunResult, ...]) -> None:
    methods = [result.run.method for result in attach_first(on_ddp)]
    assert methods == ["attach", "pipe", "bf16-hook", "ddp"]
    assert attach_first(results) == results


def test_no_curve_crosses_the_label_of_the_last_loss(on_ddp: tuple[RunResult, ...]) -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw_curves(axes, on_ddp)
    figure.canvas.draw()
    (label,) = axes.texts
    assert label.get_text() == "DDP ends"
    assert label.get_window_extent().x0 > axes.get_window_extent().x1, "beside the plot"
