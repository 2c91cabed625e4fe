"""An answer of the Python interface in blocks, which a terminal, Markdown and a notebook render."""

from collections.abc import Iterable

from rlscope.reports.blocks import Block


class InBlocks:
    """An answer that renders its blocks. Renderers are imported when they are needed: `check` waits for no template."""

    @property
    def blocks(self) -> Iterable[Block]:
        """The parts of what the command prints."""
        raise NotImplementedError

    def to_markdown(self) -> str:
        """Return the answer as Markdown, for a pull request or a chat."""
        from rlscope.reports.markdown import markdown

        return markdown(self.blocks)

    def _repr_html_(self) -> str:
        from rlscope.reports.page.html import notebook

        return notebook(self.blocks)
