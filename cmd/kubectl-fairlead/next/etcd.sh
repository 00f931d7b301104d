kubectl -n kube-system create secret tls fairlead-serving --cert=serving.crt --key=serving.key FLAGS
kubectl -n kube-system create secret tls fairlead-front-proxy-client --cert=front-proxy-client.crt --key=front-proxy-client.key FLAGS
kubectl -n kube-system create secret generic fairlead-etcd-client --from-file=tls.crt=etcd.crt --from-file=tls.key=etcd.key --from-file=ca.crt=etcd-ca.crt FLAGS
kubectl -n kube-system create configmap fairlead-trust --from-file=client-ca.crt FLAGS
kubectl -n kube-system create configmap fairlead-registry --from-file=roles.yaml FLAGS
kubectl apply -k OUT FLAGS
