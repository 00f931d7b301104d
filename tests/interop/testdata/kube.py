"""kube.py NAME with KUBECONFIG: lists, watches, creates, patches and deletes by the Python client."""
import sys
from kubernetes import client, config, watch

name = sys.argv[1]
config.load_kube_config()
api = client.CoreV1Api()
items = api.list_namespaced_config_map("kube-public", label_selector="big=1").items
print("list", len(items), sum(len(one.data["x"]) for one in items))
api.create_namespaced_config_map("default", {"metadata": {"name": name, "labels": {"by": name}}, "data": {"n": "1"}})
events = []
for event in watch.Watch().stream(api.list_namespaced_config_map, "default", label_selector="by=" + name):
    events.append(event["type"] + " " + event["object"].data["n"])
    if event["type"] == "ADDED":
        api.patch_namespaced_config_map(name, "default", {"data": {"n": "2"}})
    if event["type"] == "MODIFIED":
        api.delete_namespaced_config_map(name, "default")
    if event["type"] == "DELETED":
        break
print(", ".join(events))
try:
    api.read_namespaced_config_map(name, "default")
except client.ApiException as err:
    print(err.status, err.reason)
