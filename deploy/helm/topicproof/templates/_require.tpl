{{/* What no schema of values can say. */}}
{{- define "topicproof.requireSound" -}}
{{- if not .Values.kafka.bootstrap }}{{ fail "kafka.bootstrap is empty: name the brokers, as host:port." }}{{ end -}}
{{- if and .Values.ingress.enabled (not (include "topicproof.reachable" .)) -}}
{{ fail "ingress.enabled needs login.config: without a login the dashboard listens on its pod's loopback only. dashboard.insecure=true serves everybody." }}
{{- end -}}
{{- if and .Values.login.config.openid (not .Values.login.existingSecret) -}}
{{ fail "login.config.openid needs login.existingSecret: a Secret with the key client-secret." }}
{{- end -}}
{{- if and .Values.spark.operator.enabled (not .Values.storage.url) -}}
{{ fail "spark.operator.enabled needs storage.url: its executors share no disk with the dashboard." }}
{{- end -}}
{{- with .Values.kafka.strimziUser -}}
{{- $known := list }}{{ range $.Values.strimzi.users }}{{ $known = append $known .name }}{{ end -}}
{{- if not (and $.Values.strimzi.enabled (has . $known)) -}}
{{ fail (printf "kafka.strimziUser is %s, which is not the name of one of strimzi.users, or strimzi.enabled is false." .) }}
{{- end -}}
{{- end -}}
{{- end -}}
