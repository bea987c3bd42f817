{{- define "ws-guard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "ws-guard.fullname" -}}
{{- $name := include "ws-guard.name" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ws-guard.selector" -}}
app.kubernetes.io/name: {{ include "ws-guard.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ws-guard.labels" -}}
{{- include "ws-guard.labelsWith" (list . dict) }}
{{- end }}

{{- /* (list $ labels): ours, an object's own, and those of every object. Each key once; what the
       selectors need cannot be replaced. */}}
{{- define "ws-guard.labelsWith" -}}
{{- $root := index . 0 }}
{{- $ours := dict
      "app.kubernetes.io/version" $root.Chart.AppVersion
      "app.kubernetes.io/managed-by" $root.Release.Service
      "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) }}
{{- $selector := include "ws-guard.selector" $root | fromYaml }}
{{- toYaml (merge $selector $ours (index . 1 | default dict) ($root.Values.commonLabels | default dict)) }}
{{- end }}

{{- define "ws-guard.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "ws-guard.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
