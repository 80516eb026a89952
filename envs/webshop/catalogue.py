"""The catalogue: products, their search index and what goals are drawn from, read-only and shared.

Invariant: everything is in files that are memory-mapped, so environments, processes and the page cache share one
copy. The files are a cache, keyed by what they were made from; deleting them only costs time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.envs.webshop.analyzer import analyze
from rollenv.envs.webshop.bm25 import Arrays, Bm25, IndexBuilder, term_hash
from rollenv.envs.webshop.loading import DataFiles, JsonStream, Progress, find_files, fingerprint
from rollenv.envs.webshop.nouns import ListNouns, NounCounter, Nouns, resolve, spacy_nouns
from rollenv.envs.webshop.product import Product
from rollenv.errors import RollenvError

FORMAT = 1
"""Raised whenever the files of the cache change their meaning."""
SEARCH_HITS = 50

_INDEX = ("terms", "starts", "docs", "counts", "impacts", "norms", "idf", "rank")
_ARRAYS = (
    *("offsets", "asins", "asin_docs", "price_low", "price_high", "ranged", "combinations", "weights", "human"),
    *("category_hash", "query_hash", "attribute_hash", "attribute_doc"),
)


class LruCache(OrderedDict[Any, Any]):
    """A dict that forgets its oldest entries beyond `size`. Reading does not renew an entry: that keeps it cheap."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= self.size:
            with contextlib.suppress(KeyError, RuntimeError):
                self.popitem(last=False)
        super().__setitem__(key, value)


class Catalogue:
    """Products by their number in the catalogue's order, and search over them. Made by `load_catalogue`.

    Attributes:
        sha256: hex sha256 over the products' content; equal for equal catalogues on every machine.
        views: rendered pages, shared by all environments of the process.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.source = source
        self.views: LruCache = LruCache(16384)
        self._products: LruCache = LruCache(2048)
        self._hits: LruCache = LruCache(8192)
        self._list_nouns: ListNouns | None = None
        try:
            self.sha256: str = json.loads((folder / "meta.json").read_text())["sha256"]
            self._arrays = {name: _map(folder, name) for name in _ARRAYS}
            self._blob = memoryview(_map(folder, "products"))  # type: ignore[arg-type]
            self._index = Bm25({name: _map(folder, name) for name in _INDEX})
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise RollenvError(f"webshop: the cache in '{folder}' is damaged ({error}); delete that folder") from error
        self._offsets = self._arrays["offsets"]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"Catalogue({len(self)} products of {self.source}, sha256 {self.sha256[:12]})"

    def array(self, name: str) -> NDArray[Any]:
        """One of the arrays over products (see `_Builder`)."""
        return self._arrays[name]

    def product(self, which: int | str) -> Product:
        """A product by its number or its asin.

        Raises:
            RollenvError: there is no such product.
        """
        number = self.number(which) if isinstance(which, str) else which
        product = self._products.get(number)
        if product is None:
            if not 0 <= number < len(self):
                raise RollenvError(f"webshop: there is no product {which}; the catalogue has 0 to {len(self) - 1}")
            start, end = self._offsets[number], self._offsets[number + 1]
            product = self._products[number] = Product.decode(bytes(self._blob[start:end]))
        return product

    def number(self, asin: str) -> int:
        """The number of the product with that asin.

        Raises:
            RollenvError: there is no such product.
        """
        asins = self._arrays["asins"]
        at = int(np.searchsorted(asins, asin))
        if at >= len(asins) or asins[at] != asin:
            raise RollenvError(f"webshop: the catalogue has no product {asin!r}")
        return int(self._arrays["asin_docs"][at])

    def __iter__(self) -> Iterator[Product]:
        return (self.product(number) for number in range(len(self)))

    def search(self, query: str, k: int = SEARCH_HITS) -> list[tuple[str, float]]:
        """The best `k` products for a query, best first, as (asin, BM25 score)."""
        numbers, scores = self._index.search(analyze(query), k)
        return [(self.product(int(n)).asin, float(s)) for n, s in zip(numbers, scores, strict=True)]

    def hits(self, query: str) -> tuple[int, ...]:
        """The numbers of the best 50 products for a query; remembered."""
        found = self._hits.get(query)
        if found is None:
            numbers, _ = self._index.search(analyze(query), SEARCH_HITS)
            found = self._hits[query] = tuple(numbers.tolist())
        return found

    def having(self, field: str, value: str) -> tuple[int, ...]:
        """Numbers of all products whose `category`, `query` or one of whose attributes is `value`, in order."""
        matches = np.flatnonzero(self._arrays[f"{field}_hash"] == np.uint64(term_hash(value)))
        if field == "attribute":
            matches = np.unique(self._arrays["attribute_doc"][matches])
        return tuple(matches.tolist())

    def nouns(self, choice: str = "auto") -> Nouns:
        """The noun component of that name (see `nouns.py`) for this catalogue."""
        if resolve(choice) == "spacy":
            return spacy_nouns()
        if self._list_nouns is None:
            self._list_nouns = ListNouns((self.folder / "nouns.txt").read_text(encoding="utf-8").split("\n"))
        return self._list_nouns

    def remembered(self, name: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Arrays kept beside the catalogue under `name`, made by `make()` the first time and mapped later."""
        kept = self.folder / name
        if not kept.is_dir():
            arrays = make()
            try:
                work = Path(tempfile.mkdtemp(prefix=".building-", dir=self.folder))
            except OSError:
                return arrays
            for key, value in arrays.items():
                np.save(work / f"{key}.npy", value, allow_pickle=False)
            # Another process may have been faster: its folder holds the same.
            with contextlib.suppress(OSError):
                os.replace(work, kept)
            shutil.rmtree(work, ignore_errors=True)
        return {path.stem: _map(kept, path.stem) for path in kept.glob("*.npy")}


def _map(folder: Path, name: str) -> NDArray[Any]:
    stored = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    # A plain view: numpy's memmap class makes every slice several times slower.
    return np.asarray(stored)


# -- building ----------------------------------------------------------------------------------------------


_COLUMNS = {
    "price_low": "d",
    "price_high": "d",
    "ranged": "b",
    "combinations": "q",
    "human": "i",
    "category_hash": "Q",
    "query_hash": "Q",
    "attribute_hash": "Q",
    "attribute_doc": "i",
}
"""Columns that grow with the products, and the type of their values."""


class _Builder:
    """Takes products one by one and leaves the catalogue's files in a folder.

    Arrays over N products: `offsets` int64 (N + 1,) into `products` (uint8); `price_low`, `price_high` float64
    and `ranged` int8 (whether there are two prices); `combinations` int64 (goals that the product's synthetic
    instruction makes, -1 without one); `weights` float64 (of each such goal); `human` int32 (human goals); hashes
    of category and query.
    `asins` sorted, with their products in `asin_docs`; `attribute_hash` and `attribute_doc` are pairs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blob = (folder / "products.bin").open("wb")
        self._sha256 = hashlib.sha256()
        self._index = IndexBuilder()
        self._nouns = NounCounter()
        self._asins: list[str] = []
        self._seen: set[str] = set()
        self._offsets = array("q", [0])
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self._wanted: list[list[str]] = []

    def is_new(self, asin: str) -> bool:
        """Whether a product of that asin belongs in: the original leaves these out."""
        return asin != "nan" and len(asin) <= 10 and asin not in self._seen

    def add(self, product: Product) -> None:
        """Adds the next product."""
        number = len(self._asins)
        self._seen.add(product.asin)
        self._asins.append(product.asin)
        record = product.encode()
        self._sha256.update(record + b"\n")
        self._blob.write(record)
        self._offsets.append(self._offsets[-1] + len(record))
        self._index.add(analyze(product.search_text))
        self._nouns.add(product.name, product.query, product.product_category)
        has_goals = product.instruction is not None and bool(product.instruction_attributes)
        columns = self._columns
        columns["price_low"].append(product.prices[0])
        columns["price_high"].append(product.prices[-1])
        columns["ranged"].append(len(product.prices) > 1)
        # -1: no instruction. With one, a price bound is drawn even if an option without values leaves no goals.
        columns["combinations"].append(product.combinations if has_goals else -1)
        columns["human"].append(sum(bool(attributes) for _, attributes, _ in product.human))
        columns["category_hash"].append(term_hash(product.category))
        columns["query_hash"].append(term_hash(product.query))
        for attribute in set(product.attributes):
            columns["attribute_hash"].append(term_hash(attribute))
            columns["attribute_doc"].append(number)
        self._wanted.append(product.instruction_attributes if has_goals else [])

    def finish(self) -> None:
        """Writes everything."""
        self._blob.close()
        arrays: Arrays = {name: np.array(column) for name, column in self._columns.items()}
        order = sorted(range(len(self._asins)), key=self._asins.__getitem__)
        arrays["offsets"] = np.array(self._offsets)
        arrays["asins"] = np.array([self._asins[i] for i in order], dtype="U10")
        arrays["asin_docs"] = np.array(order, dtype=np.int32)
        arrays["weights"] = self._weights()
        arrays |= self._index.finish(self._asins)
        for name, value in arrays.items():
            np.save(self._folder / f"{name}.npy", value, allow_pickle=False)
        _as_array_file(self._folder / "products.bin", self._folder / "products.npy")
        (self._folder / "nouns.txt").write_text("\n".join(self._nouns.words()), encoding="utf-8")
        (self._folder / "meta.json").write_text(json.dumps({"sha256": self._sha256.hexdigest(), "format": FORMAT}))

    def _weights(self) -> NDArray[np.float64]:
        """The rarer a goal's attributes among all goals, the more it weighs."""
        counts: dict[str, int] = {}
        for wanted, combinations in zip(self._wanted, self._columns["combinations"], strict=True):
            for attribute in wanted:
                counts[attribute] = counts.get(attribute, 0) + max(combinations, 0)
        weights = [
            sum(1.0 / counts[a] for a in wanted) / len(wanted) if wanted and all(counts[a] for a in wanted) else 0.0
            for wanted in self._wanted
        ]
        return np.array(weights, dtype=np.float64)


def _as_array_file(raw: Path, target: Path) -> None:
    """Turns a file of bytes into a .npy file of uint8 without reading it into memory."""
    size = raw.stat().st_size
    with target.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
        with raw.open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 22)
    raw.unlink()


def build(
    folder: Path,
    items: Iterable[Mapping[str, Any]],
    notes: Mapping[str, Mapping[str, Any]],
    human: Mapping[str, list[dict[str, Any]]],
) -> None:
    """Writes a catalogue's files into `folder` from records in WebShop's format.

    Args:
        items: records of the products file, in order.
        notes: asin -> its entry of the attributes file.
        human: asin -> its human instructions.
    """
    builder = _Builder(folder)
    for raw in items:
        asin = raw.get("asin")
        if not isinstance(asin, str):
            raise RollenvError("webshop: a product has no 'asin'; the items file is not WebShop's")
        if builder.is_new(asin):
            builder.add(Product.from_raw(raw, notes.get(asin, {}), human.get(asin, ())))
    builder.finish()


def _build_from_files(folder: Path, files: DataFiles, num_products: int | None) -> None:
    with Progress("Reading WebShop's catalogue", files.size()) as progress:
        human = dict(JsonStream(files.human, progress.advance).pairs()) if files.human else {}
        notes = dict(JsonStream(files.attributes, progress.advance).pairs())
        items = JsonStream(files.items, progress.advance).items()
        build(folder, _first(items, num_products), notes, human)


def _first(items: Iterator[Any], count: int | None) -> Iterator[Any]:
    """The first `count` items, all when None; without reading one more."""
    if count is None:
        yield from items
        return
    for _, item in zip(range(count), items, strict=False):
        yield item


# -- the cache ---------------------------------------------------------------------------------------------


def cache_root() -> Path:
    """`$ROLLENV_CACHE`, or `~/.cache/rollenv`."""
    return Path(os.environ.get("ROLLENV_CACHE") or Path("~/.cache/rollenv").expanduser()) / "webshop"


def load_catalogue(data: str | os.PathLike[str] | None = None, *, num_products: int | None = None) -> Catalogue:
    """The catalogue of a folder with WebShop's files, or the generated store when `data` is None.

    The same object for the same arguments within a process. The first call for some data reads it all (a second
    for 1,000 products, minutes for a million) and leaves an index in the cache folder; later ones map it.

    Args:
        data: folder with items_shuffle[_1000].json, items_ins_v2[_1000].json, items_human_ins.json (or .gz).
        num_products: only the first so many of the file.

    Raises:
        RollenvError: a file is missing or torn, or `num_products` is not positive.
    """
    if num_products is not None and (not isinstance(num_products, int) or num_products < 1):
        raise RollenvError(f"webshop: num_products must be a positive number or None, not {num_products!r}")
    return _load(None if data is None else os.path.abspath(os.path.expanduser(data)), num_products)


_lock = threading.Lock()
_loaded: dict[tuple[str | None, int | None], Catalogue] = {}


def _load(data: str | None, num_products: int | None) -> Catalogue:
    catalogue = _loaded.get((data, num_products))
    if catalogue is not None:
        return catalogue
    with _lock:
        if (data, num_products) not in _loaded:
            _loaded[data, num_products] = _open(data, num_products)
        return _loaded[data, num_products]


def _open(data: str | None, num_products: int | None) -> Catalogue:
    if data is None:
        folder = _cached(_store_key(num_products), lambda target: _build_from_store(target, num_products))
        return Catalogue(folder, "the generated store")
    files = find_files(data)
    key = f"{_fingerprint(files)[:32]}-{num_products or 'all'}"
    return Catalogue(_cached(key, lambda target: _build_from_files(target, files, num_products)), data)


def _build_from_store(folder: Path, num_products: int | None) -> None:
    from rollenv.envs.webshop import store

    items, notes, human = store.generate()
    build(folder, items[:num_products], notes, human)


def _store_key(num_products: int | None) -> str:
    """What the generated store is made from: its own source, and the Python that runs it."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("store*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"store-{digest.hexdigest()[:16]}-py{sys.version_info[0]}{sys.version_info[1]}-{num_products or 'all'}"


def _fingerprint(files: DataFiles) -> str:
    """`fingerprint`, remembered as long as the files' sizes and times stay: hashing gigabytes takes its time."""
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files.present()]
    note = cache_root() / f"stat-{hashlib.sha256(repr(stats).encode()).hexdigest()[:32]}"
    with contextlib.suppress(OSError):
        return note.read_text()
    found = fingerprint(files)
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(found)
    return found


def _cached(key: str, build_into: Callable[[Path], None]) -> Path:
    """The folder of the cache for `key`, built if it is not there; a folder of this process where none can be made."""
    folder = cache_root() / f"v{FORMAT}-{_builder_version()}-{key}"
    if (folder / "meta.json").exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError:
        work = Path(_private_folder(key).name)
        build_into(work)
        return work
    try:
        with _only_one(folder.parent / ".lock"):
            if not (folder / "meta.json").exists():
                build_into(work)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(work, folder)
    except OSError as error:
        raise RollenvError(
            f"webshop: cannot write the catalogue's index into '{folder.parent}': {error}; make room there, or set "
            "ROLLENV_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


@functools.cache
def _private_folder(key: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rollenv-webshop-")


@functools.cache
def _builder_version() -> str:
    """Changes with the code that makes the files, so that no cache outlives it."""
    digest = hashlib.sha256()
    for name in ("analyzer.py", "bm25.py", "catalogue.py", "goals.py", "nouns.py", "product.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:8]


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Lets one process build at a time, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
