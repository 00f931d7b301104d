{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
{{- end }}

{{- define "fairlead.labels" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ toYaml .Release.Name }}
app.kubernetes.io/version: {{ toYaml .Chart.AppVersion }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* One of the manifests that kustomize uses too, with this release's labels: there is no second copy of a rule or an alert. */}}
{{- define "fairlead.shipped" -}}
{{- $labels := include "fairlead.labels" .root | fromYaml }}
{{- $text := .root.Files.Get .file | required (printf "%s is missing: in git it is a link, which archives such as Flux's leave out. Use the chart of a release" .file) }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- $_ := set $object.metadata "labels" (merge (dict) (get $object.metadata "labels" | default dict) $labels ($.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}

{{- define "fairlead.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where each mode finds its keys, and where it listens: what the values leave out. */}}
{{- define "fairlead.settings" -}}
{{- $given := dict "ports" (.Values.ports | default dict) "files" (.Values.files | default dict) }}
{{- if .Values.localAPIServers }}{{- $_ := set $given "localAPIServers" .Values.localAPIServers }}{{- end }}
{{- if eq .Values.mode "control-plane" }}
{{- mergeOverwrite (include "fairlead.beside" . | fromYaml) $given | toYaml }}
{{- else }}
{{- mergeOverwrite (include "fairlead.apart" . | fromYaml) $given | toYaml }}
{{- end }}
{{- end }}

{{/* On a kubeadm node, beside its kube-apiserver. */}}
{{- define "fairlead.beside" -}}
localAPIServers: ["https://$(HOST_IP):6443"]
ports: {https: 8443, admin: 8444}
files:
  servingCert: /etc/kubernetes/pki/apiserver.crt
  servingKey: /etc/kubernetes/pki/apiserver.key
  clientCA: /etc/kubernetes/pki/ca.crt
  requestHeaderCA: /etc/kubernetes/pki/front-proxy-ca.crt
  proxyClientCert: /etc/kubernetes/pki/front-proxy-client.crt
  proxyClientKey: /etc/kubernetes/pki/front-proxy-client.key
{{- end }}

{{/* Not empty: its certificates are of its own CA, and towards the cluster it is its ServiceAccount. */}}
{{- define "fairlead.ownCA" -}}
{{- if or (eq .Values.mode "behind") (eq .Values.localIdentity "impersonate") }}true{{ end }}
{{- end }}

{{/* Where clients, or the cluster, reach it. */}}
{{- define "fairlead.serviceType" -}}
{{ .Values.service.type | default (eq .Values.mode "behind" | ternary "ClusterIP" "LoadBalancer") }}
{{- end }}

{{- define "fairlead.servicePort" -}}
{{ .Values.service.port | default (eq .Values.mode "behind" | ternary 443 6443) }}
{{- end }}

{{/* Anywhere, with keys from Secrets. */}}
{{- define "fairlead.apart" -}}
localAPIServers: []
ports: {https: 6443, admin: 6444}
files:
  servingCert: /etc/fairlead/serving/tls.crt
  servingKey: /etc/fairlead/serving/tls.key
  {{- if not (include "fairlead.ownCA" .) }}
  clientCA: /etc/fairlead/trust/client-ca.crt
  requestHeaderCA: /etc/fairlead/trust/requestheader-ca.crt
  {{- end }}
  proxyClientCert: /etc/fairlead/front-proxy-client/tls.crt
  proxyClientKey: /etc/fairlead/front-proxy-client/tls.key
{{- end }}

{{/* kubeadm sets this label to "", K3s and RKE2 to "true". */}}
{{- define "fairlead.controlPlaneNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms: [{matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]}]
{{- end }}

{{/* The command line of all modes. */}}
{{- define "fairlead.args" -}}
{{- $s := include "fairlead.settings" . | fromYaml -}}
- serve
{{- range $s.localAPIServers }}
- --local-apiserver={{ . }}
{{- end }}
{{- if and (eq .Values.mode "control-plane") (not .Values.localAPIServers) }}
- --local-apiservers-from={{ .Values.entrypoint.enabled | ternary "lease" "endpointslice" }}
{{- end }}
{{- if eq .Values.mode "behind" }}
- --behind={{ .Release.Namespace }}/fairlead
- --authentication-configmap
- --requestheader-uid-headers=X-Remote-Uid
- --authorization-mode=backend
{{- end }}
{{- if include "fairlead.ownCA" . }}
- --local-identity=impersonate
{{- end }}
- --secure-port={{ $s.ports.https }}
- --admin-secure-port={{ $s.ports.admin }}
- --tls-cert-file={{ $s.files.servingCert }}
- --tls-private-key-file={{ $s.files.servingKey }}
{{- with $s.files.clientCA }}
- --client-ca-file={{ . }}
{{- end }}
{{- with $s.files.requestHeaderCA }}
- --requestheader-client-ca-file={{ . }}
- {{ printf "--requestheader-allowed-names=%s" (join "," $.Values.requestHeaderAllowedNames) | toYaml }}
{{- end }}
- --proxy-client-cert-file={{ $s.files.proxyClientCert }}
- --proxy-client-key-file={{ $s.files.proxyClientKey }}
- --shutdown-delay-duration={{ .Values.shutdownDelay }}
- --goaway-chance={{ .Values.goawayChance }}
- --logging-format={{ .Values.loggingFormat }}
- --zone=$(ZONE)
{{- if .Values.entrypoint.enabled }}
- --publish-kubernetes-endpoints
- --advertise-address={{ .Values.entrypoint.advertiseAddress | default (eq .Values.mode "control-plane" | ternary "$(HOST_IP)" "$(POD_IP)") }}
{{- end }}
{{- with .Values.criticalAPIServices }}
- --critical-apiservices={{ join "," . }}
{{- end }}
{{- if .Values.writeStatus }}
- --write-status
{{- end }}
{{- if .Values.emitEvents }}
- --emit-events
{{- end }}
{{- if .Values.policy.enabled }}
- --policy=configmap:{{ .Release.Namespace }}/fairlead-policy
{{- end }}
{{- if .Values.audit.enabled }}
- --audit-policy-file=/etc/fairlead/audit/policy.yaml
- --audit-log-path=-
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The files of the node that the container sees, and no others: beside them lie the keys of the cluster's CAs. What is elsewhere comes by extraVolumes. */}}
{{- define "fairlead.nodeFiles" -}}
{{- $f := (include "fairlead.settings" . | fromYaml).files }}
{{- range uniq (list $f.servingCert $f.servingKey $f.clientCA $f.requestHeaderCA $f.proxyClientCert $f.proxyClientKey) }}
{{- if hasPrefix "/etc/kubernetes/pki/" . }}
- {mount: {{ . }}, file: {{ trimPrefix "/etc/kubernetes/pki" . }}, name: {{ trimPrefix "/etc/kubernetes/pki/" . | lower | replace "." "-" | replace "/" "-" | replace "_" "-" }}}
{{- end }}
{{- end }}
{{- end }}

{{/* What the values add to all modes. */}}
{{- define "fairlead.extraMounts" -}}
{{- if .Values.audit.enabled }}
- {name: audit, mountPath: /etc/fairlead/audit, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead.extraVolumes" -}}
{{- if .Values.audit.enabled }}
- {name: audit, configMap: {name: fairlead-audit}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead.podLabels" -}}
{{ include "fairlead.selector" . }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead.probes" -}}
readinessProbe: {httpGet: {path: /readyz, port: admin, scheme: HTTPS}, periodSeconds: 2, timeoutSeconds: 5}
livenessProbe: {httpGet: {path: /livez, port: admin, scheme: HTTPS}, periodSeconds: 10, timeoutSeconds: 15, failureThreshold: 6}
{{- with .Values.startupProbe }}
startupProbe: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
