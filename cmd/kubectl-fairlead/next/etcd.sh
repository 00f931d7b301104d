kubectl -n kube-system create secret tls fairlead-serving --cert=serving.crt --key=serving.key
kubectl -n kube-system create secret tls fairlead-front-proxy-client --cert=front-proxy-client.crt --key=front-proxy-client.key
kubectl -n kube-system create secret generic fairlead-etcd-client --from-file=tls.crt=etcd.crt --from-file=tls.key=etcd.key --from-file=ca.crt=etcd-ca.crt
kubectl -n kube-system create configmap fairlead-trust --from-file=client-ca.crt
kubectl -n kube-system create configmap fairlead-registry --from-file=roles.yaml
kubectl apply -k OUT
