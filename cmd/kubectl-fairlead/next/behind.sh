kubectl fairlead init --serving-names=fairlead.kube-system.svc
kubectl fairlead init --append-authentication-configmap
kubectl apply -k OUT
kubectl -n kube-system rollout status deployment fairlead
kubectl fairlead adopt NAME
