kubectl -n kube-system create secret tls fairlead-serving --cert=serving.crt --key=serving.key FLAGS
kubectl -n kube-system create secret tls fairlead-front-proxy-client --cert=front-proxy-client.crt --key=front-proxy-client.key FLAGS
kubectl -n kube-system create configmap fairlead-trust --from-file=client-ca.crt --from-file=requestheader-ca.crt FLAGS
kubectl apply -k OUT FLAGS
kubectl fairlead lint FLAGS
