"""Draw a replay as SVG, a line per policy: cards in use by load or time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 210, 24, 48
_COLOURS = ("#0b6e4f", "#c1121f", "#1d4ed8", "#b45309", "#6b21a8", "#475569", "#0e7490", "#be185d")
_DASHES = ("", "6 4", "2 3")


class Axes(NamedTuple):
    """Meaning of both axes."""

    across: str
    up: str
    from_parting: bool = True
    """Whether the drawing begins shortly before the policies differ."""


ARRIVED = Axes("asked for, percent of the cards", "in use, percent of the cards")
OVER_TIME = Axes("percent of the time", "in use, percent of the cards", from_parting=False)


def picture(curves: Mapping[str, Mapping[int, float]], axes: Axes = ARRIVED) -> str:
    """Draw the curves in percent; the list at the right has the last value of each."""
    loads = sorted({at for curve in curves.values() for at in curve})
    parting = _parting(curves, loads) if axes.from_parting else 0
    loads = [at for at in loads if at >= parting] or [0]
    values = [curve[at] for curve in curves.values() for at in loads if at in curve] or [0.0]
    low, high = int(min(values)), min(int(max(values)) + 1, 100)
    frame = _Frame(loads[0], max(loads[-1], loads[0] + 1), low, max(high, low + 1))
    parts = [*frame.axes(axes)]
    names = sorted(curves, key=lambda name: -_last(curves[name], loads))
    for number, name in enumerate(names):
        points = [(at, curves[name][at]) for at in loads if at in curves[name]]
        parts += frame.line(points, number, f"{name} {_last(curves[name], loads):.2f} %")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _parting(curves: Mapping[str, Mapping[int, float]], loads: list[int]) -> int:
    """Return the last multiple of 5 before two policies differ by half a percent."""
    for at in loads:
        values = [curve[at] for curve in curves.values() if at in curve]
        if values and (max(values) - min(values) > 0.5 or max(values) < at - 0.5):
            return max(at - 5, 0) // 5 * 5
    return loads[0] if loads else 0


def _last(curve: Mapping[int, float], loads: list[int]) -> float:
    return next((curve[at] for at in reversed(loads) if at in curve), 0.0)


class _Frame:
    """Coordinates of values in the drawing."""

    def __init__(self, first: int, last: int, low: int, high: int) -> None:
        self._first, self._last, self._low, self._high = first, last, low, high

    def _x(self, at: float) -> float:
        part = (at - self._first) / (self._last - self._first)
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        part = (value - self._low) / (self._high - self._low)
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, axes: Axes) -> list[str]:
        """Draw the axes with numbers and labels."""
        parts = []
        for value in range(self._low, self._high + 1, max((self._high - self._low) // 10, 1)):
            y = self._y(value)
            parts.append(
                f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="#e2e8f0"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
            )
        for at in range(self._first, self._last + 1, 5):
            x = self._x(at)
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{at}</text>'
            )
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">'
            f"{escape(axes.across)}</text>"
            f'<text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 16 {HEIGHT / 2:.0f})">{escape(axes.up)}</text>'
        )
        return parts

    def line(self, points: list[tuple[int, float]], number: int, name: str) -> list[str]:
        """Draw the line of one policy, and its entry in the list at the right."""
        colour = _COLOURS[number % len(_COLOURS)]
        dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        way = " ".join(f"{self._x(at):.1f},{self._y(value):.1f}" for at, value in points)
        x, y = WIDTH - _RIGHT + 14, _TOP + 16 + 22 * number
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        return [
            f'<polyline points="{way}" {style}/>',
            f'<path d="M{x} {y - 4}h22" {style}/><text x="{x + 28}" y="{y}">{escape(name)}</text>',
        ]
