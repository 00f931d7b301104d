package manifests

import "strings"

// Autoscaled returns a namespace's Deployment web, of one replica, and a HorizontalPodAutoscaler
// that has three of it: by the metric my-external-metric of custom-metrics' test-adapter.
func Autoscaled(namespace string) string {
	return strings.ReplaceAll(`
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: NAMESPACE, name: web}
spec: {replicas: 1, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: web}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {namespace: NAMESPACE, name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: External, external: {metric: {name: my-external-metric}, target: {type: AverageValue, averageValue: "1"}}}]
`, "NAMESPACE", namespace)
}
