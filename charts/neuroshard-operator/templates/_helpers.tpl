{{/* The release's name, with the chart's unless it is in it already; at most 40 characters, so that suffixes fit. */}}
{{- define "neuroshard.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "neuroshard.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "neuroshard.labels" -}}
{{ include "neuroshard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "neuroshard.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "neuroshard.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The whole name of one image: include "neuroshard.image" (list . "planner") */}}
{{- define "neuroshard.image" -}}
{{- $root := index . 0 -}}
{{- $which := index . 1 -}}
{{- $images := $root.Values.images -}}
{{- $whole := index $images $which -}}
{{- if $whole -}}
{{- $whole -}}
{{- else -}}
{{- $registry := required (printf "images.registry: is empty; hint: give the registry that holds the image %s, or images.%s" $which $which) $images.registry -}}
{{- $tag := $images.tag | default $root.Chart.AppVersion -}}
{{- /* A tag of digits alone is a number to Helm, and in a file one with an exponent. */ -}}
{{- printf "%s/%s:%s" (trimSuffix "/" $registry) $which (kindIs "float64" $tag | ternary (printf "%.0f" (float64 $tag)) (toString $tag)) -}}
{{- end -}}
{{- end -}}

{{/*
What the operator may do in each namespace whose jobs it runs. It may hand out only what it has itself: the Roles that it
makes for the pods of jobs allow to patch one ConfigMap each.
*/}}
{{- define "neuroshard.jobRules" -}}
- apiGroups: [training.neuroshard.dev]
  resources: [dlrmtrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [training.neuroshard.dev]
  resources: [dlrmtrainingjobs/status]
  verbs: [update]
# Children name the job as an owner that waits for them; clusters that enforce owner references ask for this right.
- apiGroups: [training.neuroshard.dev]
  resources: [dlrmtrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.jobSets }}
- apiGroups: [jobset.x-k8s.io]
  resources: [jobsets]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end -}}
