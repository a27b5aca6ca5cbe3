{{- define "duramen.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "duramen.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "duramen.selector" . }}
{{- end }}

{{- define "duramen.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "duramen.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "duramen.secret" -}}
{{ .Values.auth.existingSecret | default (include "duramen.name" .) }}
{{- end }}

{{- /* Addresses of all coordinators: HOST:PORT,… */ -}}
{{- define "duramen.coordinators" -}}
{{- $name := include "duramen.name" . -}}
{{- $hosts := list -}}
{{- range until (int .Values.coordinator.count) -}}
{{- $hosts = append $hosts (printf "%s-coordinator-%d.%s-coordinator:7400" $name . $name) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end }}

{{- define "duramen.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  # Where it forbids io_uring the server reads with threads.
  type: RuntimeDefault
{{- end }}

{{- define "duramen.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "duramen.metrics" -}}
{{- if .Values.metrics.annotations -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
{{- end -}}
{{- end }}
