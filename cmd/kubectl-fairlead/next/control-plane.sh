kubectl apply -k OUT
kubectl -n kube-system rollout status daemonset fairlead
kubectl fairlead lint
