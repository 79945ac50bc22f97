"""Jobs of horovod.ray on a Ray of this host: argv is the folder of Ray, the file for the results
and the backends. {backend: {executor: facts of all ranks}}"""

import json
import sys
from pathlib import Path

import ray
from horovod.ray import ElasticRayExecutor, RayExecutor
from training import train, train_elastically


def static(backend):
    settings = RayExecutor.create_settings(timeout_s=60)
    executor = RayExecutor(settings, num_workers=2, cpus_per_worker=1)
    executor.start(extra_env_vars={"HOROVOD_CPU_OPERATIONS": backend})
    facts = executor.run(train)
    executor.shutdown()
    return facts


def elastic(backend):
    settings = ElasticRayExecutor.create_settings(
        min_num_proc=2, max_num_proc=2, nics={"lo"}, timeout_s=60, elastic_timeout=60
    )
    variables = {"HOROVOD_CPU_OPERATIONS": backend}
    executor = ElasticRayExecutor(settings, cpus_per_slot=1, env_vars=variables)
    executor.start()
    return executor.run(train_elastically)


folder, output, *backends = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=folder)
try:
    found = {name: {run.__name__: run(name) for run in (static, elastic)} for name in backends}
finally:
    ray.shutdown()
Path(output).write_text(json.dumps(found))
