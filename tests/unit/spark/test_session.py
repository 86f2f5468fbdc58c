from __future__ import annotations

import subprocess
import sys

from dcpstream.spark.session import local_master, recommended_settings
from tools.patience import patient


def test_settings_for_one_machine() -> None:
    settings = recommended_settings(3)
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.streaming.checkpointFileManagerClass"].endswith(
        ".checkpointing.FileSystemBasedCheckpointFileManager"
    )


def test_a_failed_task_is_run_again_on_one_machine_too() -> None:
    assert local_master(3) == "local[3,4]"


def test_the_local_checkpoint_manager_is_not_for_a_cluster() -> None:
    assert "spark.sql.streaming.checkpointFileManagerClass" not in recommended_settings(8, is_local=False)


def test_the_format_is_found_by_name() -> None:
    import pyspark_dcpstream

    assert pyspark_dcpstream.DefaultSource.name() == "dcp"


def test_without_its_libraries_the_format_is_not_there_and_nothing_fails() -> None:
    hide = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_dcpstream as p; print(hasattr(p, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "False"


def test_the_package_itself_does_not_load_spark() -> None:
    code = "import dcpstream.spark, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(60), check=True)
    assert done.stdout.strip() == "False"
