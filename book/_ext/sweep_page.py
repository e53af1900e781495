"""The page of a grid of runs: how every run stands, in one static file that needs no network."""

from __future__ import annotations

import datetime
import html
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sweep_store import State, Store, lock, put

# Shape and word say the same as the colour (Okabe and Ito's blue and vermilion).
SIGNS = {"done": "●", "running": "▶", "failed": "✕", "missing": "○"}
NAMED = ("method", "model", "dataset", "mrate", "noise_rate", "protocol", "noise", "seed", "preset")
STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d2126; --soft: #5c6570; --line: #d5dae0;
  --done: #0072b2; --failed: #b34700; --panel: #f5f7f9; --tint: 0, 114, 178; }
@media (prefers-color-scheme: dark) { :root { --page: #14181c; --text: #e7eaee; --soft: #a3adb8;
  --line: #38414b; --done: #56b4e9; --failed: #ff9a52; --panel: #1d2329; --tint: 86, 180, 233; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0.2rem 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 0.3rem; }
p { margin: 0.3rem 0; } .soft { color: var(--soft); font-size: 0.9rem; }
a { color: inherit; }
.bar { display: flex; height: 0.8rem; border: 1px solid var(--line); border-radius: 0.4rem; overflow: hidden;
  margin: 0.6rem 0; background: var(--panel); }
.bar .done { background: var(--done); } .bar .failed { background: var(--failed); }
.bar .running { background: repeating-linear-gradient(135deg, var(--done) 0 3px, transparent 3px 7px); }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 0.4rem; }
table { border-collapse: collapse; min-width: 100%; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--panel); font-weight: 600; white-space: nowrap; }
tbody th { position: sticky; left: 0; background: var(--page); font-weight: 600;
  min-width: 6.5rem; max-width: 12rem; overflow-wrap: anywhere; border-right: 1px solid var(--line); }
tbody th small { display: block; font-weight: 400; color: var(--soft); }
td b { display: block; white-space: nowrap; font-variant-numeric: tabular-nums; }
.seeds { display: flex; flex-wrap: wrap; gap: 0.25rem; margin-top: 0.15rem; }
.seed { font-size: 0.8rem; padding: 0 0.4rem; min-height: 1.5rem; line-height: 1.5rem;
  border: 1px solid var(--line); border-radius: 0.8rem; text-decoration: none;
  white-space: nowrap; background: var(--page); }
.seed.done { border-color: var(--done); } .seed.missing { color: var(--soft); }
.seed.running { border: 1px dashed var(--done); } .seed.failed, .error { color: var(--failed); }
.seed.failed { border: 2px solid var(--failed); }
a.seed:hover, a.seed:focus { outline: 2px solid var(--done); }
summary { cursor: pointer; margin: 1.2rem 0 0.4rem; font-weight: 600; } .error { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Run:
    """One run as the page shows it."""

    label: str
    settings: Mapping[str, Any]
    arguments: Mapping[str, Any]
    state: State

    @property
    def extra(self) -> list[str]:
        """What the run was given beside what rows and columns say."""
        found = []
        for name, value in sorted(self.arguments.items()):
            parts = value.items() if isinstance(value, Mapping) else [(name, value)]
            found += [] if name in NAMED else [f"{k}={v}" for k, v in parts if k != "root"]
        return found

    def row(self, shared: set[str]) -> tuple[str, str, str]:
        extra = [text for text in self.extra if text not in shared]
        return str(self.settings["method"]), str(self.settings.get("model", "")), " ".join(extra)

    @property
    def column(self) -> tuple[str, float]:
        s = self.settings
        kind = s["protocol"] if "protocol" in s else s.get("noise", "")
        rate = s.get("mrate", s.get("noise_rate"))
        return str(kind), -1.0 if rate is None else float(rate)

    @property
    def part(self) -> tuple[str, str]:
        return str(self.settings["dataset"]), str(self.settings["preset"])


def write_page(store: Store) -> None:
    """Write ``index.html`` as the grid stands now; one process after the other: the last word wins."""
    with lock(store.folder / "state" / "page.lock"):
        put(store.folder / "index.html", page(store))


def page(store: Store) -> str:
    """Return the page of a grid."""
    runs = [
        Run(label, run["settings"], run["arguments"], store.state(label)) for label, run in store.runs.items()
    ]
    counts = {name: sum(run.state.name == name for run in runs) for name in SIGNS}
    title = html.escape(f"Grid {store.plan['grid']}")
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    share = "".join(
        f'<span class="{name}" style="width:{100 * counts[name] / max(len(runs), 1):.3f}%"></span>'
        for name in ("done", "running", "failed")
    )
    words = ", ".join(f"{SIGNS[name]}&nbsp;{counts[name]}&nbsp;{name}" for name in SIGNS)
    again = '<meta http-equiv="refresh" content="20">' if counts["running"] else ""
    body = [
        f"<h1>{title}</h1><p>{words}; {len(runs)} runs</p>",
        f'<div class="bar" role="img" aria-label="{counts["done"]} of {len(runs)} runs done">{share}</div>',
        f'<p class="soft">Written {now}. A cell: mean ± standard deviation over the finished seeds, on the '
        "test set; more colour is higher within its table. Below it the seeds; each leads to its notebook, a "
        "failed one to its log.</p>",
        *failures(store, runs),
        *(text for part in unique(run.part for run in runs) for text in section(store, part, runs)),
        *listing(store, runs),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def section(store: Store, part: tuple[str, str], every: list[Run]) -> Iterator[str]:
    """Yield the table of one data set and preset: methods and models in rows, noise and rate in columns."""
    runs = [run for run in every if run.part == part]
    columns = sorted(unique(run.column for run in runs))
    shared = set.intersection(*(set(run.extra) for run in runs))
    cells: dict[tuple[Any, Any], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.row(shared), run.column), []).append(run)
    means = {key: statistics.fmean(v) for key, group in cells.items() if (v := values_of(group))}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    metric = next((run.state.known["metric"] for run in runs if run.state.name == "done"), "")
    dataset, preset = map(html.escape, part)
    yield f"<h2>{dataset}, preset {preset}{': ' + metric if metric else ''}</h2>"
    if shared:
        yield f'<p class="soft">All with {html.escape(", ".join(sorted(shared)))}.</p>'
    yield '<div class="wide"><table><thead><tr><th>method</th>'
    yield "".join(f"<th>{html.escape(heading(column))}</th>" for column in columns) + "</tr></thead><tbody>"
    for row in unique(run.row(shared) for run in runs):
        method, model, extra = map(html.escape, row)
        small = "".join(f"<small>{text}</small>" for text in (model, extra) if text)
        yield f'<tr><th scope="row">{method}{small}</th>'
        for column in columns:
            group = cells.get((row, column), [])
            mean = means.get((row, column))
            tint = 0.06 + 0.34 * (mean - low) / ((high - low) or 1.0) if mean is not None else 0.0
            style = f' style="background:rgba(var(--tint),{tint:.2f})"' if mean is not None else ""
            seeds = "".join(seed(store, run) for run in group)
            yield f'<td{style}>{summary(group)}<span class="seeds">{seeds}</span></td>'
        yield "</tr>"
    yield "</tbody></table></div>"


def heading(column: tuple[str, float]) -> str:
    kind, rate = column
    return kind if rate < 0 else f"{kind} {rate:g}"


def values_of(group: list[Run]) -> list[float]:
    return [run.state.known["value"] for run in group if run.state.name == "done"]


def number(value: float, metric: str) -> str:
    return f"{value:.1f}" if metric == "rSum" else f"{value:.3f}"


def summary(group: list[Run]) -> str:
    """Return mean and spread of the finished seeds of a cell."""
    values = values_of(group)
    if not values:
        return ""
    metric = next(run.state.known["metric"] for run in group if run.state.name == "done")
    spread = f" ± {number(statistics.stdev(values), metric)}" if len(values) > 1 else ""
    return f"<b>{number(statistics.fmean(values), metric)}{spread}</b>"


def link(store: Store, path: Any) -> str:
    return quote(path.relative_to(store.folder).as_posix())


def seed(store: Store, run: Run) -> str:
    """Return the mark of one run, a link where there is something to see."""
    name = run.state.name
    text = f"{SIGNS[name]} {run.settings['seed']}"
    said = html.escape(f"seed {run.settings['seed']}: {name}", quote=True)
    page_of = store.html(run.label) if store.html(run.label).exists() else store.notebook(run.label)
    target = {"done": page_of, "failed": store.log(run.label), "running": store.log(run.label)}.get(name)
    if target is None or not target.exists():
        return f'<span class="seed {name}" title="{said}">{text}</span>'
    return f'<a class="seed {name}" title="{said}" href="{link(store, target)}">{text}</a>'


def failures(store: Store, runs: list[Run]) -> Iterator[str]:
    """Yield the failed runs with the last line of their errors."""
    failed = [run for run in runs if run.state.name == "failed"]
    if failed:
        yield "<h2>Failed</h2><ul>"
        for run in failed:
            line = html.escape(str(run.state.known.get("error", "")).strip().splitlines()[-1:][0][:400])
            where, name = link(store, store.log(run.label)), html.escape(run.label)
            yield f'<li><a href="{where}">{name}</a><br><span class="error">{line}</span></li>'
        yield "</ul>"


def listing(store: Store, runs: list[Run]) -> Iterator[str]:
    """Yield every run with its files."""
    yield "<details><summary>Every run and its files</summary>"
    yield '<div class="wide"><table><thead><tr><th>run</th><th>state</th><th>result</th><th>seconds</th>'
    yield "<th>files</th></tr></thead><tbody>"
    for run in runs:
        known, done = run.state.known, run.state.name == "done"
        result = f"{known['metric']} {number(known['value'], known['metric'])}" if done else ""
        files = {
            "page": store.html(run.label),
            "notebook": store.notebook(run.label),
            "record": store.record(run.label),
            "log": store.log(run.label),
        }
        links = " ".join(f'<a href="{link(store, p)}">{n}</a>' for n, p in files.items() if p.exists())
        yield f'<tr><th scope="row">{html.escape(run.label)}</th>'
        yield f"<td>{SIGNS[run.state.name]} {run.state.name}</td>"
        yield f"<td>{result}</td><td>{known.get('seconds', '')}</td><td>{links}</td></tr>"
    yield "</tbody></table></div></details>"
