kubectl fairlead init --serving-names=fairlead.kube-system.svc FLAGS
kubectl apply -k OUT FLAGS
kubectl -n kube-system rollout status deployment fairlead FLAGS
kubectl fairlead init --append-authentication-configmap FLAGS
kubectl fairlead adopt NAME FLAGS
