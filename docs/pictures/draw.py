"""Draws the pictures of the documentation from text: each `NAME.txt` beside this file becomes `NAME.svg`.

    python3 docs/pictures/draw.py            # draws all
    python3 docs/pictures/draw.py --check    # says which picture is not what its text makes

A text is drawn with the characters for boxes. Every character has one cell of the picture, so what fits in the text fits
in the picture. Closed rectangles become boxes, the first line of text in a box its title; a `┌` that begins no closed
rectangle is an error. Colours follow the reader's light or dark mode. A text line that begins with `#` is a description for those who cannot see the picture.
"""

import html
import pathlib
import re
import sys

WIDTH, HEIGHT = 8.4, 18
MARGIN = 10
# Which sides of its cell a character of a line reaches: left, right, up, down.
LINES = {
    "─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu",
    "├": "rud", "┤": "lud", "┬": "lrd", "┴": "lru", "┼": "lrud",
}  # fmt: skip
ARROWS = {"▶": (1, 0), "◀": (-1, 0), "▼": (0, 1), "▲": (0, -1)}
STYLE = """\
  :root { --ink: #1f2328; --line: #59636e; --outer: #f6f8fa; --inner: #ffffff; --back: #ffffff; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #f0f6fc; --line: #9198a1; --outer: #151b23; --inner: #212830; --back: #0d1117; }
  }
  text { font-size: 14px; font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--ink); }
  .title { font-weight: 600; }
  .outer { fill: var(--outer); stroke: var(--line); }
  .inner { fill: var(--inner); stroke: var(--line); }
  .back { fill: var(--back); }
  .line { fill: none; stroke: var(--line); stroke-width: 1.4; }
  .head { fill: var(--line); }"""


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """One text as a grid of cells."""

    def __init__(self, text: str) -> None:
        lines = text.rstrip("\n").split("\n")
        self.about = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        self.rows = [line.rstrip() for line in lines if not line.startswith("#")]
        self.width = max(map(len, self.rows))

    def at(self, x: int, y: int) -> str:
        inside = 0 <= y < len(self.rows) and 0 <= x < len(self.rows[y])
        return self.rows[y][x] if inside else " "

    def boxes(self) -> list[tuple[int, int, int, int]]:
        """The rectangles that are closed, those around others first."""
        found = []
        for top, row in enumerate(self.rows):
            for left in (match.start() for match in re.finditer("[┌├]", row)):
                right = left + 1
                while self.at(right, top) in "─┬┴▼▲" or self.is_title(right, top, left):
                    right += 1
                bottom = top + 1
                while self.at(left, bottom) in "│┤◀▶":
                    bottom += 1
                corners = self.at(left, top) + self.at(right, top) + self.at(left, bottom)
                if corners == "┌┐└" and self.at(right, bottom) == "┘":
                    found.append((left, top, right, bottom))
        return sorted(found, key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))

    def is_title(self, x: int, y: int, left: int) -> bool:
        """Whether a character of a box's upper side belongs to its title: `┌ title ───┐`."""
        character = self.at(x, y)
        return character not in LINES and character not in ARROWS and self.at(left + 1, y) == " " and x < len(self.rows[y])

    def svg(self) -> str:
        boxes = self.boxes()
        corners = {(x, y) for y, row in enumerate(self.rows) for x, character in enumerate(row) if character == "┌"}
        for x, y in sorted(corners - {(left, top) for left, top, _, _ in boxes}):
            raise ValueError(f"line {y + 1}, column {x + 1}: the box that begins here is not closed")
        border = {}
        for left, top, right, bottom in boxes:
            for x in range(left, right + 1):
                border[x, top] = border[x, bottom] = "lr"
            for y in range(top, bottom + 1):
                border[left, y] = border[right, y] = "ud"
            for corner in ((left, top), (right, top), (left, bottom), (right, bottom)):
                border[corner] = "lrud"
        out = [rectangle("back", 0, 0, self.width * WIDTH + 2 * MARGIN, len(self.rows) * HEIGHT + 2 * MARGIN, 6)]
        for box in boxes:
            left, top, right, bottom = box
            around = any(b[0] > left and b[1] > top and b[2] < right and b[3] < bottom for b in boxes)
            x, y = middle(left, top)
            kind = "outer" if around else "inner"
            out.append(rectangle(kind, x, y, (right - left) * WIDTH, (bottom - top) * HEIGHT, 4))
        out += self.lines(border) + self.texts(boxes)
        size = f"{number(self.width * WIDTH + 2 * MARGIN)} {number(len(self.rows) * HEIGHT + 2 * MARGIN)}"
        about = html.escape(self.about)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="{about}">'
        return "\n".join([head, f"<style>\n{STYLE}\n</style>", *out, "</svg>", ""])

    def lines(self, border: dict[tuple[int, int], str]) -> list[str]:
        """What the characters of lines and arrows draw, but for the sides of boxes."""
        path, heads = [], []
        for y, row in enumerate(self.rows):
            for x, character in enumerate(row):
                cx, cy = middle(x, y)
                ends = {"l": (cx - WIDTH / 2, cy), "r": (cx + WIDTH / 2, cy), "u": (cx, cy - HEIGHT / 2), "d": (cx, cy + HEIGHT / 2)}
                for side in LINES.get(character, ""):
                    if side not in border.get((x, y), ""):
                        path.append(f"M{number(cx)} {number(cy)}L{number(ends[side][0])} {number(ends[side][1])}")
                if character in ARROWS:
                    dx, dy = ARROWS[character]
                    reach, back, half = (WIDTH - 1, WIDTH / 2, 4) if dx else (HEIGHT - 1, -HEIGHT / 4, 4)
                    tip = (cx + dx * reach, cy + dy * reach)
                    foot = (cx - dx * back, cy - dy * back)
                    sides = [(foot[0] + sign * dy * half, foot[1] + sign * dx * half) for sign in (1, -1)]
                    if not dx:
                        path.append(f"M{number(cx)} {number(cy - dy * HEIGHT / 2)}L{number(foot[0])} {number(foot[1])}")
                    points = " ".join(f"{number(px)},{number(py)}" for px, py in [tip, *sides])
                    heads.append(f'<polygon class="head" points="{points}"/>')
        return ([f'<path class="line" d="{"".join(path)}"/>'] if path else []) + heads

    def texts(self, boxes: list[tuple[int, int, int, int]]) -> list[str]:
        """The words, each run as wide as its characters are many; gaps of two spaces part runs."""
        out = []
        drawn = "".join(LINES) + "".join(ARROWS)
        for y, row in enumerate(self.rows):
            blank = "".join(" " if character in drawn else character for character in row)
            for run in re.finditer(r"\S+( \S+)*", blank):
                x, words = run.start(), run.group()
                onto = [box for box in boxes if box[1] == y and box[0] < x < box[2]]
                title = bool(onto) or any(box[1] == y - 1 and box[0] < x < box[2] for box in boxes)
                px, py = MARGIN + x * WIDTH, MARGIN + (y + 0.5) * HEIGHT + 5
                length = number(len(words) * WIDTH)
                if onto:
                    out.append(rectangle("outer", px - 4, py - 14, len(words) * WIDTH + 8, HEIGHT, 4))
                kind = ' class="title"' if title else ""
                place = f'x="{number(px)}" y="{number(py)}" textLength="{length}"'
                out.append(f"<text{kind} {place}>{html.escape(words)}</text>")
        return out


def middle(x: int, y: int) -> tuple[float, float]:
    return MARGIN + (x + 0.5) * WIDTH, MARGIN + (y + 0.5) * HEIGHT


def rectangle(kind: str, x: float, y: float, width: float, height: float, corner: int) -> str:
    sizes = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect class="{kind}" {sizes} rx="{corner}"/>'


def main(check: bool) -> int:
    wrong = []
    texts = sorted(pathlib.Path(__file__).parent.glob("*.txt"))
    for text in texts:
        drawn, picture = Picture(text.read_text()).svg(), text.with_suffix(".svg")
        if not check:
            picture.write_text(drawn)
        elif not picture.exists() or picture.read_text() != drawn:
            wrong.append(picture.name)
    for name in wrong:
        print(f"{name} is not what its text makes: run python3 docs/pictures/draw.py", file=sys.stderr)
    print(f"{len(texts)} pictures")
    return 1 if wrong or not texts else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
