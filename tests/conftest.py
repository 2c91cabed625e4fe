import os
from collections.abc import Iterator
from hashlib import sha256

import pytest
from markupsafe import Markup


@pytest.fixture(scope="session")
def stills_drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same made runs are drawn again and again, and half of the time goes into the pictures for no scripts.

    Processes that test side by side share what each has drawn: the folder above theirs is that of the session.
    """
    from rlscope.reports.page import html

    own = tmp_path_factory.getbasetemp()
    folder, draw = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "stills", html.still
    folder.mkdir(exist_ok=True)

    def still(spec: str, anchor: str) -> Markup:
        path = folder / f"{sha256(f'{anchor} {spec}'.encode()).hexdigest()}.svg"
        if not path.exists():
            drawn = path.with_suffix(f".{os.getpid()}")
            drawn.write_text(draw(spec, anchor), encoding="utf-8")
            drawn.rename(path)
        return Markup(path.read_text(encoding="utf-8"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(html, "still", still)
        yield
