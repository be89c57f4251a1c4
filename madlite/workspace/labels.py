"""How containers and processes of a run are told from everybody else's."""

from __future__ import annotations

# labels of a container
RUN_LABEL = "madlite.run"
FOLDER_LABEL = "madlite.folder"
KEPT_LABEL = "madlite.kept"
# variables in the environment of every process of a run; the folder, on the host, only outside of containers
RUN_MARK = "MADLITE_RUN_ID"
FOLDER_MARK = "MADLITE_RUN_FOLDER"
KEPT_MARK = "MADLITE_KEPT"  # on the host too, where the run was asked to stay
SUPERVISOR_MARK = "MADLITE_SUPERVISOR"  # on the host, of what keeps a command's processes together
