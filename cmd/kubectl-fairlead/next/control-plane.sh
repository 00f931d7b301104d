kubectl apply -k OUT FLAGS
kubectl -n kube-system rollout status daemonset fairlead FLAGS
kubectl fairlead lint FLAGS
