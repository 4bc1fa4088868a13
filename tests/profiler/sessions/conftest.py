"""The engines that logs are read by."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """Keep one Spark for all tests: engines use the context that runs."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short life
    }
    builder = SparkSession.Builder()
    for name, value in settings.items():
        builder.config(name, value)
    session = builder.getOrCreate()
    yield
    session.stop()
