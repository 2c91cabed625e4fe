"""The JSON documents that the commands print; `rlscope/document.py` prints and describes them."""
