"""The alerts are of metrics that exist and say what to do."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from experiments.session.monitoring import GAUGES
from test_documentation import ROOT

RULES, SCRAPE = ROOT / "docs/prometheus/fedmf-alerts.yml", ROOT / "docs/prometheus/prometheus.yml"
PAGE = (ROOT / "docs/deployment.md").read_text()
OWN = {f"fedmf_{name}" for name in GAUGES} | {"fedmf_run_info"}
# Of PromQL, and of Prometheus itself for every target.
WORDS = {"time", "or", "and", "unless", "up", "job"}
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def unknown(expression):
    """Return the names in an expression that are no metric of ours and no word of PromQL."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", expression))) - OWN - WORDS


def headings(page):
    """Return the anchors that a page has, as the website and code hosts make them."""
    titles = re.findall(r"(?m)^#+ (.+)$", (ROOT / page).read_text())
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_of_metrics_that_there_are_and_says_what_to_do_and_where_that_is_said_at_length(alert):
    assert not unknown(alert["expr"])
    assert "fedmf" in alert["expr"]
    notes = alert["annotations"]
    assert set(notes) == {"summary", "action", "runbook"}
    assert all(notes[key].endswith(".") and len(notes[key]) > 15 for key in ("summary", "action"))
    assert alert["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = notes["runbook"].partition("#")
    assert anchor in headings(page)


def test_a_metric_that_there_is_not_would_be_seen():
    assert unknown('fedmf_gone > 1 and up{job="fedmf"} == 0') == {"fedmf_gone"}


def test_each_alert_has_a_row_on_the_page_and_each_row_an_alert():
    section = PAGE.partition("\n| alert |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"\bFedmf\w+", section)) == sorted(alert["alert"] for alert in ALERTS)


def test_what_is_scraped_is_what_the_rules_are_about():
    scrape = yaml.safe_load(SCRAPE.read_text())
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "fedmf"
    assert any('up{job="fedmf"}' in alert["expr"] for alert in ALERTS)
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9400"]}]
    assert [path.rpartition("/")[2] for path in scrape["rule_files"]] == [RULES.name]
    assert "run.metrics_port=9400" in PAGE
    (line,) = re.findall(r'(?m)^    (\{"time".*\})$', PAGE)  # the example of a line of the log
    assert list(json.loads(line)) == ["time", "level", "logger", "message", "run"]
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", str(RULES)], check=True, capture_output=True)
