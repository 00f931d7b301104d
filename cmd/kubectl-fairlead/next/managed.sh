kubectl fairlead init --serving-names=NAMES FLAGS
kubectl apply -k OUT FLAGS
kubectl fairlead lint FLAGS
