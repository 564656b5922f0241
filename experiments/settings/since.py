"""Since which version each setting is there: {version: {command: its keys}}; what else there is to know stands in conf/.

A new key goes to its command below the version that will be released next.
"""

from collections.abc import Mapping

SINCE: Mapping[str, Mapping[str, str]] = {
    "0.1.0": {
        "simulate": """
            dataset.path dataset.examples_per_client dataset.max_examples_per_user dataset.max_test_examples
            dataset.vocabulary dataset.user dataset.label dataset.features dataset.text dataset.split
            dataset.classes dataset.labels dataset.delimiter dataset.vocabulary_size dataset.level dataset.length
            dataset.image dataset.table dataset.file dataset.name dataset.settings dataset.as_published
            dataset.download dataset.only_digits dataset.clients dataset.partitioner dataset.partitioner_settings
            dataset.alpha dataset.shards dataset.partition_seed dataset.test dataset.shift
            model.trainable model.start model.embedding model.hidden model.name model.settings
            mechanism.name
            workload
            population.cohort_size population.rounds_per_epoch population.epochs population.min_replies
            population.max_attempts population.min_available population.max_clients_per_node population.nodes
            population.unready_nodes
            population.parts
            clipping.l2_norm clipping.linf_norm
            compression.keep_probability compression.rotation compression.value_type
            privacy.delta privacy.noise_multiplier privacy.epsilon privacy.adjacency privacy.accountant
            privacy.max_epsilon privacy.geometry
            optimizer.learning_rate optimizer.momentum optimizer.schedule optimizer.tau optimizer.weight_decay
            optimizer.precondition optimizer.beta2 optimizer.name optimizer.settings optimizer.nesterov
            client.learning_rate client.batch_size client.epochs client.device client.optimizer client.momentum
            client.weight_decay client.proximal client.max_steps client.loss client.accumulate client.autocast
            client.trainer
            engine.node_timeout engine.query_timeout engine.round_timeout engine.workers engine.devices
            engine.address engine.cpus_per_worker engine.gpus_per_worker
            faults.drop_out faults.delay faults.error faults.duplicate
            run.directory run.resume run.accept_copy run.reproducible run.unprotected_metrics
            run.stop_if_all_fail run.keep_releases run.evaluations run.evaluate_every run.evaluation_examples run.checkpoint_every
            run.optimized_metric run.extend run.trust_code run.allow_version_change run.log run.metrics_port run.health_seconds
            sweep.resume
            seed metrics logger output
        """,
        "audit": """
            directory mechanisms keep_probabilities epsilon delta runs cohort_size rounds_per_epoch epochs
            one_run_epsilon one_run_delta canaries guesses confidence workers seed output
            sabotage thorough run_directory trust_code calibration pairs residual_runs
        """,
        "benchmark": """
            rows repeats output compare device check limits page
        """,
        "certificates": """
            directory name names days authority_days renew output
        """,
        "compare": """
            directory target_accuracy plots width overwrite output
        """,
        "datasets": """
            output
        """,
        "deploy_demo": """
            directory nodes overrides timeout output
        """,
        "evaluate": """
            directory batch_size metrics trust_code output
        """,
        "mechanisms": """
            population.rounds_per_epoch population.epochs
            workload
            optimizer.momentum optimizer.schedule
            families buffers export plots output
        """,
        "node": """
            config superlink root_certificates private_key trusted_entities clients first port pause log
        """,
        "node_check": """
            clients first seed loads_only output
        """,
        "nodes": """
            file add name most_clients remove output
        """,
        "plan": """
            workload
            optimizer.momentum optimizer.schedule
            clients dimension
            population.cohort_size population.rounds_per_epoch population.epochs
            compression.keep_probability compression.rotation
            linf_over_l2
            privacy.delta privacy.adjacency privacy.accountant privacy.geometry privacy.epsilon privacy.noise_multiplier
            orders output dataset
        """,
        "export": """
            directory format to trust_code output
        """,
        "proxy": """
            parameters listen superlink name certificate key authority output
        """,
        "report": """
            directory plots width overwrite output
        """,
        "reproduce": """
            name directory data size workers compute mix_code output
        """,
        "server": """
            config address certificate key authority name database home pause log
        """,
        "soak": """
            kills deployment minutes inject nodes seed overrides directory output
        """,
        "vocabulary": """
            file size level text output
        """,
        "wipe": """
            server database home output
        """,
    },
}
