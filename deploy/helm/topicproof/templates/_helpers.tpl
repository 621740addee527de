{{/* The names of everything: the release's, with the chart's unless it is there already. At most 40 characters, because
     Spark's operator appends to it. */}}
{{- define "topicproof.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The dashboard's pod. Spark's pods inherit the labels below, and must not match. */}}
{{- define "topicproof.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: dashboard
{{- end -}}

{{- define "topicproof.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "topicproof.spark" -}}
{{ include "topicproof.name" . }}-spark
{{- end -}}

{{- define "topicproof.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "topicproof.sparkRemote" -}}
{{- if .Values.spark.operator.enabled -}}
sc://{{ include "topicproof.spark" . }}-server:15002
{{- else -}}
{{ .Values.spark.remote }}
{{- end -}}
{{- end -}}

{{/* Whether other pods can reach the dashboard: "true" or nothing. */}}
{{- define "topicproof.reachable" -}}
{{- if or .Values.login.config .Values.dashboard.insecure }}true{{ end -}}
{{- end -}}

{{/* The folders of /run/topicproof: "true" or nothing for each. */}}
{{- define "topicproof.hasKafkaFiles" -}}
{{- if or .Values.kafka.existingSecret .Values.kafka.strimziUser }}true{{ end -}}
{{- end -}}

{{- define "topicproof.hasFiles" -}}
{{- if or (include "topicproof.hasKafkaFiles" .) .Values.login.config .Values.signing.existingSecret .Values.spark.operator.enabled }}true{{ end -}}
{{- end -}}

{{/* 1000 is the user of the image. Volumes belong to its group. */}}
{{- define "topicproof.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
# Changing all files at each start would let the group read the key in the volume, which Topicproof then refuses.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "topicproof.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* From inside the pod, since the dashboard answers only to its own names. With a login it answers 401 or 403: a stranger is
     told nothing. The same as in docker-compose.yml. */}}
{{- define "topicproof.health" -}}
exec:
  command:
    - python
    - -I
    - -c
    - "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8501, timeout=4); c.request('GET', '/_stcore/health'); assert c.getresponse().status in (200, 401, 403)"
timeoutSeconds: 5
{{- end -}}

{{/* One rule of a KafkaUser. Takes a list: type, name, whether it is a prefix, operations. */}}
{{- define "topicproof.acl" -}}
- resource:
    type: {{ index . 0 }}
    name: {{ index . 1 | quote }}
    patternType: {{ index . 2 | ternary "prefix" "literal" }}
  operations: {{ index . 3 | toJson }}
{{ end -}}

{{/* The rights of one task of a user, as backend/kafka/acls.py has them; a test compares. Takes a dict: task, user. */}}
{{- define "topicproof.acls" -}}
{{- $user := .user -}}
{{- $topics := $user.topics | default list -}}
{{- if eq .task "run" -}}
{{- range $topics }}{{ include "topicproof.acl" (list "topic" . false (list "Read")) }}{{ end -}}
{{ include "topicproof.acl" (list "topic" $user.prefix true (list "Create" "Read" "Write")) -}}
{{ include "topicproof.acl" (list "group" $user.prefix true (list "Read")) -}}
{{ include "topicproof.acl" (list "transactionalId" $user.prefix true (list "Write")) -}}
{{- else -}}
{{- $inspect := eq .task "inspect" -}}
{{- $read := $inspect | ternary (list "Read") (list "Read" "DescribeConfigs") -}}
{{- $describe := $inspect | ternary (list "Describe" "DescribeConfigs") (list "Describe") -}}
{{- range $topics }}{{ include "topicproof.acl" (list "topic" . false $read) }}{{ end -}}
{{ include "topicproof.acl" (list "transactionalId" ($user.prefix | default "*") (not (empty $user.prefix)) (list "Describe")) -}}
{{- range $user.groups | default (list "*") }}{{ include "topicproof.acl" (list "group" . false $describe) }}{{ end -}}
{{- range $user.mirrors -}}
{{ include "topicproof.acl" (list "topic" (printf "%s.checkpoints.internal" .) false (list "Read")) -}}
{{ include "topicproof.acl" (list "topic" (printf "mm2-offset-syncs.%s.internal" .) false (list "Read")) -}}
{{- end -}}
{{- if $inspect }}{{ include "topicproof.acl" (list "topic" "__transaction_state" false (list "Read")) }}{{ end -}}
{{- end -}}
{{- end -}}
