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

{{- /* Behind the name of a service: clients in other namespaces resolve these names too. */ -}}
{{- define "duramen.domain" -}}
{{ .Release.Namespace }}.svc{{ with .Values.clusterDomain }}.{{ . }}{{ end }}
{{- end }}

{{- /* Addresses of all coordinators: HOST:PORT,… */ -}}
{{- define "duramen.coordinators" -}}
{{- $name := include "duramen.name" . -}}
{{- $domain := include "duramen.domain" . -}}
{{- $hosts := list -}}
{{- range until (int .Values.coordinator.count) -}}
{{- $hosts = append $hosts (printf "%s-coordinator-%d.%s-coordinator.%s:7400" $name . $name $domain) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end }}

{{- /* Whether connections between members, and to coordinators, have TLS. */ -}}
{{- define "duramen.clusterTls" -}}
{{- if and .Values.cluster.enabled .Values.tls.existingSecret .Values.tls.cluster -}}yes{{- end -}}
{{- end }}

{{- /* Whether clients have no port without TLS. */ -}}
{{- define "duramen.tlsOnly" -}}
{{- if and .Values.tls.existingSecret .Values.tls.only -}}yes{{- end -}}
{{- end }}

{{- /* Whether a port of a server has no TLS. */ -}}
{{- define "duramen.plain" -}}
{{- if or (not (include "duramen.tlsOnly" .)) (and .Values.cluster.enabled (not (include "duramen.clusterTls" .))) -}}yes{{- end -}}
{{- end }}

{{- /* All addresses of a pod, by its families: for sockets of one family, and of both. */ -}}
{{- define "duramen.bind" -}}
{{- $all := list -}}
{{- range .Values.ipFamilies | default (list "IPv4") -}}
{{- $all = append $all (ternary "0.0.0.0" "::" (eq . "IPv4")) -}}
{{- end -}}
{{- join " " $all -}}
{{- end }}

{{- define "duramen.bindBoth" -}}
{{- if has "IPv6" .Values.ipFamilies -}}::{{- else -}}0.0.0.0{{- end -}}
{{- end }}

{{- /* The first family, as the host in HOST:PORT. */ -}}
{{- define "duramen.bindFirst" -}}
{{- if eq (first (.Values.ipFamilies | default (list "IPv4"))) "IPv6" -}}[::]{{- else -}}0.0.0.0{{- end -}}
{{- end }}

{{- define "duramen.headlessFamilies" -}}
{{- with .Values.ipFamilies -}}
ipFamilyPolicy: SingleStack
ipFamilies: [{{ first . }}]
{{- end -}}
{{- end }}

{{- /* The files of TLS, for commands in a container and for coordinators. */ -}}
{{- define "duramen.tlsEnv" -}}
- {name: DURAMEN_TLS_CERT_FILE, value: /tls/tls.crt}
- {name: DURAMEN_TLS_KEY_FILE, value: /tls/tls.key}
- {name: DURAMEN_TLS_CA_CERT_FILE, value: /tls/ca.crt}
{{- end }}

{{- /* Volume of the files of TLS. */ -}}
{{- define "duramen.tlsVolume" -}}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}
{{- end }}

{{- /* Pods on different nodes, as far as there are nodes. */ -}}
{{- define "duramen.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "duramen.selector" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component }}
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
