kubectl fairlead init --serving-names=NAMES
kubectl apply -k OUT
kubectl fairlead lint
