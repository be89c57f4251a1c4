"""The page of a scaling study: its tables, and plots of efficiency and of total throughput as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from madlite.model import Value
from madlite.study.efficiency import Scaling, node_lines, scaling_cells, scaling_heads

# of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 440.0, 20.0, 230.0


class PlotPoint(Value, frozen=True):
    """A point of a plot: its place, the ends of its interval, and what is written beside it."""

    x: float
    y: float
    low: float
    high: float
    label: str
    text: str


class Plot(Value, frozen=True):
    """One plot: its points, the line of the ideal, and the marks of its upright axis as (place, text)."""

    title: str
    points: tuple[PlotPoint, ...]
    ideal: str
    marks: tuple[tuple[float, str], ...]

    @property
    def line(self) -> str:
        """The points as an SVG polyline has them."""
        return " ".join(f"{one.x:.1f},{one.y:.1f}" for one in self.points)


def render_page(study_id: str, scalings: Sequence[Scaling]) -> str:
    """Return the page: one HTML file that needs no other, without a script."""
    from madlite.reports.page.render import environment

    sections = [
        {
            "scaling": one,
            "heads": scaling_heads(),
            "rows": [scaling_cells(point) for point in one.points],
            "nodes": [line.strip() for point in one.points for line in node_lines(point)],
            "plots": (efficiency_plot(one), total_plot(one)) if one.base else (),
        }
        for one in scalings
    ]
    return environment().get_template("scaling.html.j2").render(study=study_id, sections=sections)


def efficiency_plot(one: Scaling) -> Plot:
    """Return the efficiency over GPUs or nodes, from 0 to at least 1."""
    parts = [(point, point.efficiency) for point in one.points if point.efficiency is not None]
    ends = [point.interval.high if point.interval else part for point, part in parts]
    highest = max([1.0, *ends]) * 1.05
    points = []
    for at, (point, part) in enumerate(parts):
        low, high = (point.interval.low, point.interval.high) if point.interval else (part, part)
        points.append(
            PlotPoint(
                x=_x(at, len(parts)),
                y=_y(part / highest),
                low=_y(max(0.0, low) / highest),
                high=_y(high / highest),
                label=one.count_text(point),
                text=f"{100 * part:.1f} %",
            )
        )
    ideal = f"{_LEFT:.1f},{_y(1 / highest):.1f} {_RIGHT:.1f},{_y(1 / highest):.1f}"
    marks = tuple((_y(part / highest), f"{100 * part:.0f} %") for part in (0.0, 0.25, 0.5, 0.75, 1.0))
    return Plot(title="Efficiency", points=tuple(points), ideal=ideal, marks=marks)


def total_plot(one: Scaling) -> Plot:
    """Return the speedup over GPUs or nodes beside the ideal one, which is their number ÷ the base's."""
    parts = [(point, point.speedup) for point in one.points if point.speedup is not None]
    highest = max(*(point.size / one.base for point, _ in parts), *(part for _, part in parts), 1.0) * 1.05
    points = tuple(
        PlotPoint(
            x=_x(at, len(parts)),
            y=_y(part / highest),
            low=_y(part / highest),
            high=_y(part / highest),
            label=one.count_text(point),
            text=f"{part:.2f}x",
        )
        for at, (point, part) in enumerate(parts)
    )
    ideal = " ".join(
        f"{_x(at, len(parts)):.1f},{_y(point.size / one.base / highest):.1f}" for at, (point, _) in enumerate(parts)
    )
    marks = tuple((_y(part), f"{part * highest:.1f}x") for part in (0.0, 0.5, 1.0))
    against = f" against {one.count_text(one.base_point)}" if one.base_point is not None else ""
    return Plot(title=f"Speedup{against}", points=points, ideal=ideal, marks=marks)


def _x(at: int, count: int) -> float:
    return _LEFT + (at + 0.5) * (_RIGHT - _LEFT) / count


def _y(part: float) -> float:
    return _BOTTOM - part * (_BOTTOM - _TOP)
