"""Build the wheel and, beside it, its bill of materials: ``python tools/make_wheel.py dist``.

The bill (SBOM) is CycloneDX 1.6 in JSON: the wheel with its SHA-256 digest, the packages that it and its
extra ``train`` require as they are installed here, what they require in turn, and the drawings and words in
it that others made. What the extra alone requires has the scope "optional". The digests of the packages' own
files stand in book/requirements.lock.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import uuid
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path
from typing import Any

import versions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nclib.common.extras import DISTRIBUTION as OWN
from nclib.common.files import digest

# As nclib/data/emoji/ATTRIBUTION.md lists them: name, version, author, licence.
DATA = [
    ("Noto Emoji", "2.042", "Google", "Apache-2.0"),
    ("Twemoji", "16.0.0", "Twitter, Inc. and other contributors", "CC-BY-4.0"),
    ("Fluent Emoji", "1.2.6", "Microsoft", "MIT"),
    ("CLDR", "41", "Unicode, Inc.", "Unicode-DFS-2016"),
    ("emoji-test", "15.0", "Unicode, Inc.", "Unicode-DFS-2016"),
]


def build(folder: Path) -> Path:
    """Build the wheel into a folder, from a copy of its sources."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        return Path(shutil.copy(versions.wheel(Path(place)), folder))


def required(own: Distribution, *extras: str) -> dict[str, tuple[Distribution, list[str]]]:
    """Return a package and all that it requires here, with some extras, each with what it requires itself."""
    found: dict[str, tuple[Distribution, list[str]]] = {}
    waiting = [OWN]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        package, asked = (own, ("", *extras)) if one == OWN else (distribution(one), ("",))
        wanted = [Requirement(text) for text in package.requires or ()]
        names = sorted(
            {
                canonicalize_name(r.name)
                for r in wanted
                if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in asked)
            }
            - {OWN}
        )
        found[one] = (package, names)
        waiting += names
    return found


def licences(package: Distribution) -> list[dict[str, Any]]:
    """Return the licence that a package states: an expression of SPDX, or a name."""
    facts = package.metadata
    if stated := facts.get("License-Expression"):
        return [{"expression": stated}]
    classes = [c.split(" :: ")[-1] for c in facts.get_all("Classifier") or () if c.startswith("License")]
    names = classes or [line for line in (facts.get("License") or "").splitlines() if line.strip()][:1]
    return [{"license": {"name": name}} for name in names]


def bill(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials of a wheel."""
    (facts,) = (part for part in zipfile.Path(wheel).iterdir() if part.name.endswith(".dist-info"))
    own_facts, sum_ = PathDistribution(facts), digest(wheel)
    always, every = required(own_facts), required(own_facts, "report", "train")
    parts = {
        name: {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{package.version}",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            **({"licenses": found} if (found := licences(package)) else {}),
            **({} if name in always else {"scope": "optional"}),
        }
        for name, (package, _) in sorted(every.items())
    }
    own = parts.pop(OWN)
    own |= {"hashes": [{"alg": "SHA-256", "content": sum_}]}
    data = [
        {
            "type": "data",
            "bom-ref": f"{name} {version}",
            "name": name,
            "version": version,
            "authors": [{"name": author}],
            "licenses": [{"expression": licence}],
        }
        for name, version, author, licence in DATA
    ]
    refs = {name: part["bom-ref"] for name, part in [(OWN, own), *parts.items()]}
    needs = {refs[name]: [refs[n] for n in names] for name, (_, names) in sorted(every.items())}
    needs[own["bom-ref"]] += [part["bom-ref"] for part in data]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, sum_ + json.dumps(refs))}",
        "version": 1,
        "metadata": {"component": own},
        "components": [*parts.values(), *data],
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in needs.items()],
    }


def main(words: list[str]) -> int:
    """Write wheel and bill; return 0."""
    wheel = build(Path(words[0] if words else "dist"))
    try:
        text = json.dumps(bill(wheel), indent=1)
    except PackageNotFoundError as error:
        sys.exit(f"{error} is required and not installed here; make env installs it")
    path = wheel.with_suffix(".cdx.json")
    path.write_text(text + "\n", "utf8")
    print(f"{wheel}\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
