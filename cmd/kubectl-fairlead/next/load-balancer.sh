kubectl -n kube-system create secret tls fairlead-serving --cert=serving.crt --key=serving.key
kubectl -n kube-system create secret tls fairlead-front-proxy-client --cert=front-proxy-client.crt --key=front-proxy-client.key
kubectl -n kube-system create configmap fairlead-trust --from-file=client-ca.crt --from-file=requestheader-ca.crt
kubectl apply -k OUT
kubectl fairlead lint
