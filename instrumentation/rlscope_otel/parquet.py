"""The encodings of closed files. `closing.py` decides when to write one, and `schema.py` has the columns."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# pyarrow ships no types; it is confined to the modules that convert, read and write.

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

Stamp = Mapping[str, str | int]
"""Where a file belongs, by `schema.STAMP_KEYS`."""


def open_writer(target: pa.NativeFile, arrow_schema: pa.Schema, stamp: Stamp | None) -> pq.ParquetWriter:
    """Return a writer of one file with the encodings of the format.

    The Arrow schema is not stored a second time: for small files it would be half of the bytes.
    """
    leaves = list(_leaves(arrow_schema))
    texts = [leaf for leaf, leaf_type in leaves if pa.types.is_string(leaf_type)]
    integers = [leaf for leaf, leaf_type in leaves if pa.types.is_integer(leaf_type)]
    writer = pq.ParquetWriter(
        target,
        arrow_schema,
        compression="zstd",
        use_dictionary=texts,  # pyright: ignore[reportArgumentType]  # a bool or a list of columns, says its page
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_page_checksum=True,
    )
    writer.add_key_value_metadata(arrow_schema.metadata or {})
    if stamp is not None:
        writer.add_key_value_metadata({key: str(value) for key, value in stamp.items()})
    return writer


def _leaves(parents: pa.Schema | pa.DataType, prefix: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Every leaf column by the path that Parquet gives it, such as `versions.list.element.start`."""
    for field in parents:
        if pa.types.is_list(field.type):
            yield from _leaves(field.type.value_type, f"{prefix}{field.name}.list.element.")
        else:
            yield prefix + field.name, field.type
