import sys
from pathlib import Path

# The fixture is a module of this folder; with importlib imports the folder is not on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
